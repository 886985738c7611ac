"""What it costs to bring a preempted sequence back: a cost model of two ways, for Month 5.

The trade-off is the paper's (Kwon et al., SOSP 2023, §7.3, Fig. 19). The speeds below are round assumptions of the
size that an A100 on PCIe 4.0 has; only the model's shape and its bytes per token are the paper's.
"""

from typing import NamedTuple


class SwapCosts(NamedTuple):
    """One model on one machine.

    bytes_per_token         K and V of one token, all layers
    transfers_per_block     separate copies that move one block in one direction: K and V of every layer
    seconds_per_transfer    what a copy costs however small it is (launch, set-up of the transfer)
    bytes_per_second        how fast the bytes themselves move
    prefill_per_second      tokens that a prefill computes in a second
    """

    bytes_per_token: int
    transfers_per_block: int
    seconds_per_transfer: float
    bytes_per_second: float
    prefill_per_second: float


OPT_13B = SwapCosts(
    bytes_per_token=819_200,
    transfers_per_block=2 * 40,
    seconds_per_transfer=10e-6,
    bytes_per_second=25e9,
    prefill_per_second=5_500.0,
)
