"""An OpenAI-compatible HTTP server around one engine: ``minipaged serve``.

``fields`` and ``schemas`` say what a request may hold, ``limits`` what is let in, ``engine_thread`` owns the engine,
``orders`` turns a body into work for it, ``answers`` and ``streaming`` turn its outputs into bodies and events,
``prometheus`` counts, ``app`` ties them to paths, ``process`` starts and stops it all.
"""

from minipaged.serving.server.app import create_app
from minipaged.serving.server.limits import ServerConfig

__all__ = ["ServerConfig", "create_app"]
