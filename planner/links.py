"""What links reach of the rates that they are sold by, machine by machine, and what bounds a machine's network."""

from dataclasses import replace
from math import inf

from planner.cluster import MachineGroup
from planner.frozen import frozen

PCIE_BYTES_PER_S = 64e9  # links inside a machine up to here are PCIe, wider ones NVLink and its like


@frozen
class LinkRates:
    """Shares that links reach of their rates, and bounds of machines; without figures all is as sold.

    Attributes
    ----------
    network_share, inside_share, pcie_share
        Of links between machines, inside them by NVLink and its like, and inside them by PCIe.
    scale_up_share
        Of links between machines that take no network card, whatever the cards' transport.
    host_share
        Of PCIe's rate: what leaves a machine by way of its host's memory is no faster. Infinite: nothing bounds it.
    most_bytes_per_card
        What a network card sends at most, whatever its rate.
    least_share, least_bytes_per_card
        A machine reaches this share of its cards' rate in any case, up to so much a card.
    pcie_bytes_per_s
        Links inside machines up to here are PCIe.
    scale_up_bytes_per_s
        Links between machines from here on take no network card (NVLink between trays): no card's rate bounds them.
    is_network_given
        Whether the question says what links between machines reach: that counts, and nothing else bounds them.
    """

    network_share: float = 1.0
    inside_share: float = 1.0
    pcie_share: float = 1.0
    scale_up_share: float = 1.0
    host_share: float = inf
    most_bytes_per_card: float = inf
    least_share: float = 0.0
    least_bytes_per_card: float = inf
    pcie_bytes_per_s: float = PCIE_BYTES_PER_S
    scale_up_bytes_per_s: float = inf
    is_network_given: bool = False

    def with_network(self, share: float) -> "LinkRates":
        """Return the same with a share between machines that is given, which nothing bounds."""
        unbounded = replace(self, host_share=inf, most_bytes_per_card=inf, least_share=0.0)
        return replace(unbounded, network_share=share, scale_up_share=share, is_network_given=True)

    def with_inside(self, share: float) -> "LinkRates":
        """Return the same with a share of all links inside machines that is given."""
        return replace(self, inside_share=share, pcie_share=share)

    # -- one machine

    def is_pcie(self, machine: MachineGroup) -> bool:
        """Whether PCIe alone joins the devices of a machine."""
        return machine.inside is not None and machine.inside.bandwidth_bytes_per_s <= self.pcie_bytes_per_s

    def share_inside(self, machine: MachineGroup) -> float:
        """Return what the links inside a machine reach of their rate."""
        return self.pcie_share if self.is_pcie(machine) else self.inside_share

    def inside_bytes_per_s(self, machine: MachineGroup) -> float:
        """Return what a link inside a machine reaches; infinite where there is none."""
        return inf if machine.inside is None else machine.inside.bandwidth_bytes_per_s * self.share_inside(machine)

    def most_bytes_per_s(self, machine: MachineGroup) -> float:
        """Return what a machine sends at most, whatever the rate of its network cards."""
        most = machine.num_nics * self.most_bytes_per_card
        if machine.inside is None or not self.is_pcie(machine):
            return most
        return min(most, machine.inside.bandwidth_bytes_per_s * self.host_share)

    def least_bytes_per_s(self, nominal_bytes_per_s: float, machine: MachineGroup) -> float:
        """Return what a machine reaches in any case of the rate by which its cards together are sold."""
        return min(nominal_bytes_per_s * self.least_share, machine.num_nics * self.least_bytes_per_card)

    # -- networks

    def network_bytes_per_s(self, nominal_bytes_per_s: float, *machines: MachineGroup) -> float:
        """Return what a network of some rate reaches through such machines: what the slowest of them does."""
        if self.scale_up_bytes_per_s <= nominal_bytes_per_s < inf:
            return nominal_bytes_per_s * self.scale_up_share
        usual = nominal_bytes_per_s * self.network_share
        return min(
            min(max(usual, self.least_bytes_per_s(nominal_bytes_per_s, one)), self.most_bytes_per_s(one))
            for one in machines
        )

    def share_of_network(self, nominal_bytes_per_s: float, *machines: MachineGroup) -> float:
        """Return the same as a share of that rate."""
        reached = self.network_bytes_per_s(nominal_bytes_per_s, *machines)
        is_other = nominal_bytes_per_s < inf and reached != nominal_bytes_per_s * self.network_share
        return reached / nominal_bytes_per_s if is_other else self.network_share

    # -- other links

    def in_company(self, *, may_change_transport: bool) -> "LinkRates":
        """Return rates that no machine exceeds in a cluster that has others, too.

        All that bounds a machine is its own, but for the transport: TCP, where nobody says so and others have wider
        cards, becomes RDMA. That reaches no more of a card's rate than TCP does, or than TCP's share with no bound.
        """
        return replace(self, most_bytes_per_card=inf) if may_change_transport else self

    def wider_network(self, factor: float) -> "LinkRates":
        """Return those of networks ``factor`` times as wide, cards and hosts with them."""
        return replace(
            self,
            host_share=self.host_share * factor,
            most_bytes_per_card=self.most_bytes_per_card * factor,
            least_bytes_per_card=self.least_bytes_per_card * factor,
            scale_up_bytes_per_s=self.scale_up_bytes_per_s * factor,
        )

    def wider_inside(self, factor: float) -> "LinkRates":
        """Return those of links inside ``factor`` times as wide, of the same kinds, which bound networks as before."""
        return replace(self, host_share=self.host_share / factor, pcie_bytes_per_s=self.pcie_bytes_per_s * factor)
