"""An OpenAI-compatible HTTP server around one engine: ``minipaged serve``.

``fields`` and ``schemas`` say what a request may hold, ``limits`` what is let in, ``engine_thread`` owns the engine,
``orders`` turns a body into work for it, ``answers`` and ``streaming`` turn its outputs into bodies and events,
``prometheus`` counts, ``app`` ties them to paths, ``process`` and ``background`` start and stop it all.
"""

from minipaged.serving.server.app import create_app
from minipaged.serving.server.background import serve_in_background
from minipaged.serving.server.limits import ServerConfig

__all__ = ["ServerConfig", "create_app", "serve_in_background"]
