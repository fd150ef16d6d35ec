"""Schemas of experiment and preset files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ofms.core.attacks import ATTACKS
from ofms.core.declared import Doc, Range, Values
from ofms.core.robust import AGGREGATIONS
from ofms.data.drift import Drift
from ofms.data.table import TableSource
from ofms.plugins import NO_TRUST, Trust
from ofms.policies import DEFAULT
from ofms.storage.schema import convert

# Settings by policy name.
PolicyTables = dict[str, dict[str, Any]]

# Fields of experiments and of runs.
PolicyName = Annotated[str, Values("a name from `ofms list`, or package.module:name"), Doc("The policy that runs.")]
PresetName = Annotated[str, Values("a name from `ofms list`"), Doc("Named settings of the policies.")]
DatasetName = Annotated[str | None, Values("a name from `ofms list`, or package.module:name"), Doc("The dataset.")]
ModelsFolder = Annotated[
    str | None, Values("a folder"), Doc("The dictionary; none: the experiment's own, pre-trained when it is needed.")
]
Clients = Annotated[int, Range(1), Doc("N, the number of clients.")]
Rounds = Annotated[int, Range(1), Doc("T, the samples of each client.")]
Interval = Annotated[int, Range(1), Doc("n, the samples between two exchanges with the server.", "th:5")]
_BUDGETS = Values("5 (times the largest model), 64MiB, a list 3,5, shares 3:60%,5:40%, or by client NAME=3,*=5")
_BUDGET_DOC = Doc("B_i, the memory of each client for models.", "(a2): it holds the two largest models together")
Budget = Annotated[str, _BUDGETS, _BUDGET_DOC]
_Amount = str | int | float
BudgetTable = Annotated[_Amount | list[_Amount] | dict[str, _Amount], _BUDGETS, _BUDGET_DOC]
_BANDWIDTHS = Values("50% of the summed budgets, 1GiB, or 250 (times the largest model)")
_BANDWIDTH_DOC = Doc("E, what all clients together may upload in an exchange.", "alg:6, steps 10 to 14")
Bandwidth = Annotated[str, _BANDWIDTHS, _BANDWIDTH_DOC]
BandwidthAmount = Annotated[_Amount, _BANDWIDTHS, _BANDWIDTH_DOC]
Seed = Annotated[
    int,
    Range(0, 2**63 - 1),
    Values("a whole number from 0 to 2⁶³ - 1"),
    Doc("The seed of all random numbers, and of the split of a dataset between clients."),
]
History = Annotated[
    int,
    Range(0),
    Values("the number of clients to record, 0 for none"),
    Doc(
        "How many clients, the first ones, are recorded exchange by exchange; of a long run every second, fourth, …"
        " one, in at most half a MiB for each client."
    ),
]
Device = Annotated[
    str | None,
    Values("cpu, cuda, cuda:1, mps"),
    Doc("Where models compute; none: on the processor. Accelerators are experimental."),
]
Doubling = Annotated[
    Annotated[int, Range(1)] | None,
    Doc("The rounds of the first stretch of the doubling trick; none: rates are those of the whole run."),
]
Shards = Annotated[
    Annotated[int, Range(1)] | None,
    Doc(
        "How many parts clients are cut into, each computed together: at most so many processes can share the run. "
        "It changes the last digits; none: by the number of clients, at most 8."
    ),
]
AggregationName = Annotated[
    str | None,
    Values(AGGREGATIONS),
    Doc(
        "How the updates of a model become one: their sum, or robustly, against hostile clients: the median or the "
        "trimmed mean of each coordinate, times their number, or the sum of updates clipped to their usual norm; "
        "none: the sum. The number is the share left out at either end (0.35), or the multiple of the norm (1).",
        "of the weighted updates w_i·Δ_i of the clients that upload the model",
    ),
]
AttackName = Annotated[
    str | None,
    Values(ATTACKS),
    Doc(
        "Clients that upload hostile updates, to try aggregations: their own reversed, in a random direction with the "
        "largest norm and weight that a server accepts, or their own reversed with these; none: none."
    ),
]
DriftKind = Annotated[Drift | None, Doc("How the stream changes during the run; none: not at all.")]


class Network(msgspec.Struct, forbid_unknown_fields=True):
    """One network of a dictionary; it is trained on each of the dataset's training sets."""

    name: Annotated[str, Doc("A part of its models' names.")]
    architecture: Annotated[str, Values("mlp, vgg, or package.module:name"), Doc("What builds the network.")]
    options: Annotated[dict[str, Any], Doc("Options of the architecture.")]
    optimizer: Annotated[Literal["sgd", "adam"], Doc("How it is trained.")] = "sgd"
    rate: Annotated[float, Doc("The step size of its training.")] = 0.01
    momentum: Annotated[float, Doc("The momentum of sgd.")] = 0.9
    initialisation: Annotated[
        Literal["default", "glorot-uniform", "glorot-normal", "uniform", "normal"],
        Doc("How its weights begin; default: as in PyTorch."),
    ] = "default"


class Pretraining(msgspec.Struct, forbid_unknown_fields=True):
    """How an experiment's dictionary is pre-trained; `common` holds the values that its networks share."""

    epochs: Annotated[int, Doc("Passes over a training set.")]
    batch_size: Annotated[int, Doc("The number of samples of a batch.")]
    networks: Annotated[list[dict[str, Any]], Doc("The networks, each trained on each training set.")]
    common: Annotated[dict[str, Any], Doc("Values that the networks share.")] = {}
    seed: Annotated[int, Doc("The seed of the initial weights and of the batches.")] = 0

    def kinds(self) -> list[Network]:
        """The networks, with the common values filled in."""
        return [convert(self.common | network, Network) for network in self.networks]


class TrustTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[trust]`: packages whose code may run, and the folders that they are imported from."""

    packages: tuple[str, ...]
    folders: tuple[str, ...] = (".",)

    def record(self) -> Trust:
        return Trust(self.packages, self.folders)


class EventTable(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True, kw_only=True):
    """`[[events]]`: what changes from the beginning of an exchange on; clients by number or name, or `first-last`."""

    exchange: Annotated[int, Doc("The exchange, from 0, before which it happens.")]
    join: Annotated[tuple[int | str, ...], Doc("Clients that join; they are not in the fleet before.")] = ()
    leave: Annotated[tuple[int | str, ...], Doc("Clients that leave.")] = ()
    drift: Annotated[
        tuple[int | str, ...],
        Doc("Clients that see the samples of the next one of them from then on, the last one those of the first."),
    ] = ()
    add: Annotated[tuple[str, ...], Doc("Models that are added; they are not in use before.")] = ()
    retire: Annotated[tuple[str, ...], Doc("Models that are not used any more.")] = ()
    rollback: Annotated[
        dict[str, int], Doc("Models that go back to their versions before an exchange, 0 for the first ones.")
    ] = {}
    budget: Annotated[dict[str, str | int | float], Doc("New budgets by client.")] = {}
    bandwidth: Annotated[str | None, Doc("A new bandwidth.")] = None
    interval: Annotated[int | None, Doc("A new interval between exchanges.")] = None
    aggregation: Annotated[str | None, Values(AGGREGATIONS), Doc("Another aggregation of updates.")] = None
    policy: Annotated[str | None, Doc("Another policy.")] = None
    settings: Annotated[dict[str, Any] | None, Doc("New settings of the policy.")] = None


class Experiment(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An experiment's file: on a dataset, or on your own stream."""

    summary: Annotated[str, Doc("One line that says what it is.")] = "your own experiment"
    dataset: DatasetName = None
    stream: Annotated[TableSource | None, Doc("Your own stream instead of a dataset.")] = None
    clients: Clients | None = None
    rounds: Rounds | None = None
    budget: BudgetTable
    bandwidth: BandwidthAmount
    policy: PolicyName = DEFAULT
    preset: PresetName = "published"
    seed: Seed = 0
    history: History = 10
    interval: Interval = 1
    drift: DriftKind = None
    models: ModelsFolder = None
    policies: Annotated[PolicyTables, Doc("Settings of policies, one table each, as [policies.ofms-ft].")] = {}
    trust: Annotated[TrustTable | None, Doc("Packages whose code may be imported, and their folders.")] = None
    pretraining: Annotated[Pretraining | None, Doc("How the experiment's own dictionary is pre-trained.")] = None
    events: Annotated[tuple[EventTable, ...], Doc("What changes during the run, one table [[events]] each.")] = ()
    doubling: Doubling = None
    aggregation: AggregationName = None
    attack: AttackName = None

    def trusted(self) -> Trust:
        """The packages that its file trusts."""
        return NO_TRUST if self.trust is None else self.trust.record()


class Preset(msgspec.Struct, forbid_unknown_fields=True):
    """A preset's file: settings of each policy, some of which depend on the task."""

    summary: str
    policies: PolicyTables = {}
    classification: PolicyTables = {}
    regression: PolicyTables = {}
