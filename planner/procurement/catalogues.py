"""Public catalogues of prices in their own formats: SkyPilot's, and the price lists of AWS, Azure and Google Cloud.

What a provider publishes is kept as it is: one :class:`Listed` for each price of a whole machine, its accelerators as
the catalogue calls them. What is no such price, as an operating system with a licence, is counted by its reason. Which
of our devices that is, and what a training sees of the machine, is :mod:`planner.procurement.catalogue_join`'s to say.

Formats, each after its documentation:

- SkyPilot: the columns of a catalogue's ``vms.csv`` (skypilot-org/skypilot-catalog: README and ``catalogs/v8``; the
  columns are written by ``sky/catalog/data_fetchers`` of skypilot-org/skypilot). On Google Cloud the row of a machine
  is the price of its cores and memory, and another row, without an instance type, that of its accelerators.
- AWS: "Reading the service price list file for an AWS service" (AWS Billing user guide), JSON and CSV of format v1.0.
- Azure: "Azure Retail Prices overview" (REST API of Microsoft Cost Management), pages of ``Items``. The price of a
  reservation is that of its whole term.
- Google Cloud: "Cloud Billing API, services.skus.list" (v1), pages of ``skus``. There is no price of a machine: cores,
  memory and accelerators are apart, and are added up for machines whose size is known.

A catalogue in JSON is held whole and so may be no larger than 128 MiB; one in CSV is read line by line.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, TypedDict

from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.importers.text import read_lines, read_text, refuse
from planner.letters import visible
from planner.procurement.prices import Term

MOST_JSON_BYTES = 128 * 2**20
MOST_CSV_BYTES = 8 * 2**30
MOST_LISTED = 200_000
_MOST_NAMES = 200  # of machines that are kept with a reason
_MOST_CELL = 120
H_PER_YEAR = 8760.0
_NO_ACCELERATOR = "no accelerator"
_MACHINES_OF_CPU = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


@frozen
class Listed:
    """One price of a machine, as a catalogue has it."""

    provider: str
    instance: str
    region: str
    term: Term
    per_h: float  # of one machine, in ``currency``; what is paid at the start of a commitment is spread over it
    currency: str = "USD"
    committed_h: float = 0.0
    upfront: float = 0.0  # paid at the start, a part of ``per_h`` times the committed hours
    # accelerator, num_accelerators, accelerator_gib: as the catalogue calls them; nothing where it does not say
    accelerator: str = ""
    num_accelerators: float | None = None
    accelerator_gib: float | None = None
    vcpus: float | None = None
    memory_gib: float | None = None
    note: str = ""


class ReasonRow(TypedDict):
    """A reason, by how many rows it holds of, and of which."""

    reason: str
    rows: int
    names: list[str]


@dataclass(slots=True)
class Counted:
    """How many rows there were for each reason, and what they are about."""

    numbers: dict[str, int] = field(default_factory=dict)
    names: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, reason: str, name: str, number: int = 1) -> None:
        """Count rows."""
        self.numbers[reason] = self.numbers.get(reason, 0) + number
        names = self.names.setdefault(reason, {})
        if name and len(names) < _MOST_NAMES:
            names[_short(name)] = None

    @property
    def total(self) -> int:
        """Rows of all reasons."""
        return sum(self.numbers.values())

    def rows(self) -> list[ReasonRow]:
        """Return each reason with its number and its names, the commonest first."""
        order = sorted(self.numbers, key=lambda reason: (-self.numbers[reason], reason))
        return [{"reason": one, "rows": self.numbers[one], "names": list(self.names[one])} for one in order]


@dataclass(slots=True, kw_only=True)
class Catalogue:
    """What stands in the files of one catalogue."""

    kind: str  # of which format they are, in words
    source: str  # where a price stands, as a list of prices tells it
    published: date | None = None  # the day that the catalogue says its prices hold on; None where it says none
    num_rows: int = 0  # prices of all kinds
    listed: list[Listed] = field(default_factory=list)
    left_out: Counted = field(default_factory=Counted)  # those that are no price of a machine with accelerators
    notes: list[str] = field(default_factory=list)

    def take(self, one: Listed, file: Path) -> None:
        """Keep a price; refuse more than anybody chooses from."""
        if len(self.listed) == MOST_LISTED:
            problem = f"there are more than {MOST_LISTED} prices of machines."
            raise refuse(file, problem, "Give the file of one region.")
        self.listed.append(one)


Wanted = Callable[[str], bool]  # whether an instance type may have accelerators: it stands in one of our tables


def read_catalogue(files: Sequence[Path], *, provider: str | None, is_known: Wanted) -> Catalogue:
    """Return what stands in the files of one catalogue; their format is told by their content.

    Parameters
    ----------
    files
        One, or all pages of an answer that came in pages.
    provider
        Of a SkyPilot catalogue, which does not say it; else the name of the folder or of the file.
    is_known
        Whether an instance type stands in our tables: AWS and Azure do not name accelerators.

    Raises
    ------
    SpecError
        If a file cannot be read, is of no format that is known, or the files are of several.
    """
    kinds = [_kind_of(path) for path in files]
    if len(set(kinds)) > 1:
        raise refuse(files[kinds.index(kinds[0]) + 1], "these files are of several formats.", "Import one at a time.")
    readers: dict[str, Callable[[], Catalogue]] = {
        "skypilot": lambda: _skypilot(files, provider),
        "aws-csv": lambda: _aws_csv(files, is_known),
        "aws": lambda: _aws(files, is_known),
        "azure": lambda: _azure(files, is_known),
        "gcp": lambda: _gcp(files),
    }
    if provider is not None and kinds[0] != "skypilot":
        problem, mend = "--provider: this catalogue says whose prices it holds.", "Leave it out."
        raise refuse(files[0], problem, mend, field="--provider", value=provider)
    return readers[kinds[0]]()


def _kind_of(path: Path) -> str:
    """Return the format of a file, by its beginning or by its keys."""
    lines = read_lines(path, most_bytes=MOST_CSV_BYTES, most_letters=MOST_JSON_BYTES)
    first = next((line for line in lines if line.strip()), "")  # what is empty was refused
    lines.close()  # type: ignore[attr-defined]
    if first.lstrip()[:1] in ("{", "["):
        keys = _pages(path)[0].keys()
        for kind, needed in (("aws", {"products", "terms"}), ("azure", {"Items"}), ("gcp", {"skus"})):
            if needed <= set(keys):
                return kind
    elif first.lstrip('"').startswith("FormatVersion"):
        return "aws-csv"
    elif {"instancetype", "acceleratorname", "price"} <= {cell.strip().strip('"').lower() for cell in first.split(",")}:
        return "skypilot"
    problem = "this is no catalogue of prices that is known."
    formats = "SkyPilot's vms.csv, an AWS price list (JSON or CSV), Azure retail prices, or Google Cloud's SKUs"
    raise refuse(path, problem, f"Give {formats}; a list of one's own needs no import: docs/prices.md.")


# --- Cells and keys that others wrote: whatever is not what it should be is nothing, and its row is counted


def _short(text: str) -> str:
    """Return text of others, its letters harmless, cut to what a table bears."""
    shown = visible(text.strip())
    return shown if len(shown) <= _MOST_CELL else shown[:_MOST_CELL] + "..."


def _part(text: object) -> str:
    """Return a part of an offer's name, which has no stroke in it."""
    return _short(text).replace("/", "-").replace("#", "-") if isinstance(text, str) else ""


def _number(given: object) -> float | None:
    """Return a finite number of 0 or more, given as one or as text; None for everything else."""
    if isinstance(given, str) and _MACHINES_OF_CPU.fullmatch(given.strip()):
        given = float(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    try:
        value = float(given)
    except OverflowError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _keys(value: object) -> Mapping[str, Any]:
    """Return a mapping; an empty one for everything else."""
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    """Return a list; an empty one for everything else."""
    return value if isinstance(value, list) else ()


def _day(text: object) -> date | None:
    """Return the day of a time stamp, ``2026-11-02T00:00:00Z``; None for everything else."""
    try:
        return date.fromisoformat(text[:10]) if isinstance(text, str) else None
    except ValueError:
        return None


def _pages(path: Path) -> list[Mapping[str, Any]]:
    """Return the object of a JSON file, or the objects of its list: pages of an answer put together."""
    mend = "Give the file as it was published; the CSV form of an AWS price list may be of any size."
    text = read_text(path, most_bytes=MOST_JSON_BYTES)
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"this is no JSON, or not all of it: {error.msg}."
        fault = Fault(file=str(path), line=error.lineno, column=error.colno, problem=problem, mend=mend)
        raise SpecError.of([fault]) from None
    except (RecursionError, ValueError):
        raise refuse(path, "this JSON is nested too deeply, or holds a number of thousands of digits.", mend) from None
    pages = [_keys(page) for page in (found if isinstance(found, list) else [found])]
    if not pages or not all(pages):
        raise refuse(path, "this JSON is neither an object of keys nor a list of such.", mend)
    return pages


def _all_pages(files: Sequence[Path], key: str, following: str) -> tuple[list[Any], list[str]]:
    """Return the entries of all pages, and a note where a page says that another one follows, which is not there."""
    pages = [page for path in files for page in _pages(path)]
    num_following = sum(bool(page.get(following)) for page in pages)
    notes = []
    if num_following >= len(pages):
        notes.append(f"a page follows that was not given ({following}): prices are missing")
    return [one for page in pages for one in _list(page.get(key))], notes


# --- SkyPilot

_SKYPILOT = ("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "Price", "Region")
_SIZE = re.compile(r"'?SizeInMiB'?\s*:\s*(\d{1,9})")
_PROVIDERS = re.compile(r"[\w.-]{1,60}")


def _skypilot(files: Sequence[Path], provider: str | None) -> Catalogue:
    """Return what SkyPilot's catalogues of virtual machines hold."""
    found = Catalogue(kind="SkyPilot catalogue", source="")
    sources = []
    for path in files:
        name = _provider_of(path) if provider is None else provider
        sources.append(f"SkyPilot catalogue, {name}/{path.name}")
        _skypilot_rows(path, name, found)
    found.source = "; ".join(dict.fromkeys(sources))
    return found


def _provider_of(path: Path) -> str:
    """Return whose prices a catalogue holds: its folder's name, or its own, as SkyPilot keeps them."""
    name = path.stem if path.stem != "vms" else path.resolve().parent.name
    known = {
        "aws",
        "azure",
        "gcp",
        "lambda",
        "oci",
        "runpod",
        "nebius",
        "vast",
        "fluidstack",
        "cudo",
        "paperspace",
        "ibm",
    }
    known |= {"do", "scp", "shadeform", "verda", "hyperbolic", "hyperstack", "mithril", "primeintellect", "seeweb"}
    if name not in known:
        problem, mend = "a SkyPilot catalogue does not say whose prices it holds.", "Add --provider, e.g. aws."
        raise refuse(path, problem, mend, field="--provider")
    return name


def _skypilot_rows(path: Path, provider: str, found: Catalogue) -> None:
    """Add the rows of one file."""
    if not _PROVIDERS.fullmatch(provider):
        raise refuse(path, f"{provider[:60]!r} is no name of a provider.", "Write e.g. aws.", field="--provider")
    hosts: list[tuple[Mapping[str, str], Listed]] = []
    cards: dict[tuple[str, float, str, str, Term], float] = {}
    for row in _csv_rows(path, read_lines(path, most_bytes=MOST_CSV_BYTES), _SKYPILOT):
        found.num_rows += 1
        instance, accelerator = row["InstanceType"], row["AcceleratorName"]
        number = _number(row["AcceleratorCount"])
        size = _SIZE.search(row.get("GpuInfo", ""))
        prices = {Term.ON_DEMAND: row["Price"], Term.SPOT: row.get("SpotPrice", "")}
        if not accelerator and (provider != "gcp" or _google_machine(instance) is None):
            found.left_out.add(_NO_ACCELERATOR, instance)
            continue
        if not any(cell.strip() for cell in prices.values()):
            found.left_out.add("no price in the catalogue", instance or accelerator)
        for term, cell in prices.items():
            if not cell.strip():
                continue
            if not (per_h := _number(cell)):
                found.left_out.add(f"{term}: a price that is none", instance or accelerator)
                continue
            one = Listed(
                provider=provider,
                instance=_part(instance or accelerator),
                region=_part(row["Region"]) or "all",
                term=term,
                per_h=per_h,
                accelerator=_short(accelerator),
                num_accelerators=number,
                accelerator_gib=None if size is None else int(size[1]) / 1024,
                vcpus=_number(row["vCPUs"]),
                memory_gib=_number(row["MemoryGiB"]),
            )
            zone = row.get("AvailabilityZone", "")
            if provider == "gcp" and not instance and not accelerator.lower().startswith("tpu"):
                key = accelerator.upper(), number or 0.0, one.region, zone, term
                cards[key] = min(per_h, cards.get(key, math.inf))
            elif provider == "gcp" and instance and _google_machine(instance) is not None:
                hosts.append((row, one))
            else:
                found.take(one, path)
    _with_cards(path, hosts, cards, found)


def _with_cards(
    path: Path,
    hosts: Sequence[tuple[Mapping[str, str], Listed]],
    cards: Mapping[tuple[str, float, str, str, Term], float],
    found: Catalogue,
) -> None:
    """Add machines of Google Cloud: the price of each, which is of cores and memory, and that of its accelerators."""
    used: set[tuple[str, float, str, str, Term]] = set()
    for row, host in hosts:
        machine = _google_machine(host.instance)
        assert machine is not None, "only those are kept"
        key = machine.accelerator, float(machine.num_gpus), host.region, row.get("AvailabilityZone", ""), host.term
        if (per_h := cards.get(key)) is None:
            reason = f"{host.term}: no price of its {machine.num_gpus} x {machine.accelerator} in the same zone"
            found.left_out.add(reason, host.instance)
            continue
        used.add(key)
        whole = replace(host, accelerator=machine.accelerator, num_accelerators=float(machine.num_gpus))
        note = f"cores and memory {host.per_h:g}, accelerators {per_h:g} an hour; local disks are left out"
        found.take(replace(whole, per_h=host.per_h + per_h, note=note), path)
    for key in cards:
        if key not in used:
            found.left_out.add("an accelerator of Google Cloud without a machine of its own", f"{key[1]:g} x {key[0]}")


def _csv_rows(path: Path, lines: Iterator[str], needed: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a table whose first line names its columns; a row that is too short lacks its last cells."""
    reader = csv.reader(lines, strict=True)
    try:
        columns = [name.strip() for name in next(reader, [])]
        if missing := [name for name in needed if name not in columns]:
            problem = f"the column {missing[0]!r} is missing."
            raise refuse(path, problem, "Give the catalogue as it was published.")
        for cells in reader:
            if any(cells):
                yield {**dict.fromkeys(columns, ""), **dict(zip(columns, cells, strict=False))}
    except csv.Error as error:
        fault = Fault(
            file=str(path), line=reader.line_num, problem=f"this is no row of CSV: {error}.", mend="Is it whole?"
        )
        raise SpecError.of([fault]) from None


# --- AWS

_AWS_SOURCE = "AWS price list"
_LEASES = {"1yr": H_PER_YEAR, "3yr": 3 * H_PER_YEAR}
_OPERATION = "RunInstances"  # Linux without anything that has a licence


def _aws_reason(attributes: Mapping[str, str], is_known: Wanted) -> str:
    """Return why a product is no machine to train on; nothing where it is one.

    ``attributes``: by the names that the JSON form has.
    """
    instance = attributes.get("instanceType", "")
    if not instance:
        return "no machine"
    if not is_known(instance):
        gpus = attributes.get("gpu", "")
        return f"an instance type with {_short(gpus)} GPUs that the tables do not hold" if gpus else _NO_ACCELERATOR
    for key, wanted, words in (
        ("operatingSystem", "Linux", "another operating system than Linux"),
        ("tenancy", "Shared", "another tenancy than shared"),
        ("capacitystatus", "Used", "capacity that is reserved or unused"),
        ("preInstalledSw", "NA", "software that is installed"),
        ("operation", _OPERATION, "another operation"),
    ):
        if attributes.get(key, wanted) not in (wanted, ""):
            return words
    return ""


def _aws_machine(attributes: Mapping[str, str]) -> Listed:
    """Return a machine of a product; its price is to come."""
    memory = attributes.get("memory", "").removesuffix("GiB").replace(",", "")
    return Listed(
        provider="aws",
        instance=_part(attributes.get("instanceType", "")),
        region=_part(attributes.get("regionCode") or attributes.get("location", "")) or "all",
        term=Term.ON_DEMAND,
        per_h=0.0,
        num_accelerators=_number(attributes.get("gpu", "")),
        vcpus=_number(attributes.get("vcpu", "")),
        memory_gib=_number(memory),
    )


@dataclass(slots=True)
class _AwsTerm:
    """The prices of one offer of a product: an hour, and at the start."""

    machine: Listed
    attributes: Mapping[str, str]
    is_reserved: bool
    per_h: float | None = None
    upfront: float = 0.0
    currency: str = "USD"

    def add(self, unit: str, price: object, currency: str) -> None:
        """Add one price."""
        value = _number(price)
        self.currency = currency or "USD"
        if unit.lower() in ("hrs", "hours") and value is not None:
            self.per_h = (self.per_h or 0.0) + value
        elif unit.lower() == "quantity" and value is not None:
            self.upfront += value

    def listed(self, found: Catalogue) -> Listed | None:
        """Return the price of the machine; None, and counted, where there is none that is meant."""
        name = self.machine.instance
        if not self.is_reserved:
            if not self.per_h:
                found.left_out.add("a price of 0, or none by the hour", name)
                return None
            return replace(self.machine, per_h=self.per_h, currency=self.currency)
        hours = _LEASES.get(self.attributes.get("LeaseContractLength", "").replace(" ", ""))
        kind = _short(self.attributes.get("OfferingClass", ""))
        if hours is None or kind not in ("standard", ""):
            found.left_out.add(f"reserved: {kind or 'of another length than 1 or 3 years'}", name)
            return None
        per_h = (self.per_h or 0.0) + self.upfront / hours
        if not per_h:
            found.left_out.add("a price of 0, or none by the hour", name)
            return None
        years = "1 year" if hours == H_PER_YEAR else "3 years"
        note = f"{years}, {_short(self.attributes.get('PurchaseOption', '')) or 'reserved'}"
        priced = replace(self.machine, per_h=per_h, currency=self.currency, note=note)
        return replace(priced, term=Term.RESERVED, committed_h=hours, upfront=self.upfront)


def _aws(files: Sequence[Path], is_known: Wanted) -> Catalogue:
    """Return what AWS price lists in JSON hold."""
    found = Catalogue(kind="AWS price list", source=_AWS_SOURCE)
    for path in files:
        for page in _pages(path):
            found.published = _latest(found.published, _day(page.get("publicationDate")))
            found.source = (
                f"{_AWS_SOURCE} {_short(str(page.get('offerCode', '')))} {_short(str(page.get('version', '')))}"
            )
            products: dict[str, Listed] = {}
            for sku, product in _keys(page["products"]).items():
                found.num_rows += 1
                given = _keys(_keys(product).get("attributes"))
                attributes = {key: value for key, value in given.items() if isinstance(value, str)}
                if reason := _aws_reason(attributes, is_known):
                    found.left_out.add(reason, attributes.get("instanceType", ""))
                else:
                    products[sku] = _aws_machine(attributes)
            for kind in ("OnDemand", "Reserved"):
                for sku, offers in _keys(_keys(page["terms"]).get(kind)).items():
                    if sku in products:
                        for offer in _keys(offers).values():
                            if (one := _aws_offer(products[sku], _keys(offer), kind).listed(found)) is not None:
                                found.take(one, path)
    return found


def _aws_offer(machine: Listed, offer: Mapping[str, Any], kind: str) -> _AwsTerm:
    """Return an offer of a product with its prices."""
    given = _keys(offer.get("termAttributes"))
    term = _AwsTerm(
        machine=machine,
        attributes={key: value for key, value in given.items() if isinstance(value, str)},
        is_reserved=kind == "Reserved",
    )
    for part in _keys(offer.get("priceDimensions")).values():
        unit, prices = _keys(part).get("unit"), _keys(_keys(part).get("pricePerUnit"))
        currency = "USD" if "USD" in prices else next(iter(prices), "")
        term.add(unit if isinstance(unit, str) else "", prices.get(currency), _short(currency))
    return term


_AWS_COLUMNS = {  # of the CSV form, by the names of the JSON form
    "Instance Type": "instanceType",
    "Operating System": "operatingSystem",
    "Tenancy": "tenancy",
    "CapacityStatus": "capacitystatus",
    "Pre Installed S/W": "preInstalledSw",
    "operation": "operation",
    "GPU": "gpu",
    "vCPU": "vcpu",
    "Memory": "memory",
    "Location": "location",
    "Region Code": "regionCode",
}
_AWS_NEEDED = ("SKU", "OfferTermCode", "TermType", "Unit", "PricePerUnit", "Currency", "Instance Type", "Location")


def _aws_csv(files: Sequence[Path], is_known: Wanted) -> Catalogue:
    """Return what AWS price lists in CSV hold: five lines about the file, the columns, and one price a row."""
    found = Catalogue(kind="AWS price list", source=_AWS_SOURCE)
    for path in files:
        lines = read_lines(path, most_bytes=MOST_CSV_BYTES)
        about = {}
        for _ in range(5):
            cells = next(csv.reader([next(lines, "")]), [])
            about[cells[0] if cells else ""] = cells[1] if len(cells) > 1 else ""
        found.published = _latest(found.published, _day(about.get("Publication Date")))
        found.source = f"{_AWS_SOURCE} {_short(about.get('OfferCode', ''))} {_short(about.get('Version', ''))}"
        terms: dict[tuple[str, str, str], _AwsTerm] = {}
        for row in _csv_rows(path, lines, _AWS_NEEDED):
            found.num_rows += 1
            attributes = {key: row.get(column, "") for column, key in _AWS_COLUMNS.items()}
            if reason := _aws_reason(attributes, is_known):
                found.left_out.add(reason, attributes["instanceType"])
                continue
            key = row["SKU"], row["OfferTermCode"], row["TermType"]
            if key not in terms:
                terms[key] = _AwsTerm(
                    machine=_aws_machine(attributes), attributes=row, is_reserved=row["TermType"] == "Reserved"
                )
            terms[key].add(row["Unit"], row["PricePerUnit"], _short(row["Currency"]))
        for term in terms.values():
            if (one := term.listed(found)) is not None:
                found.take(one, path)
    return found


def _latest(one: date | None, other: date | None) -> date | None:
    """Return the later of two days that may not be known."""
    return max((day for day in (one, other) if day is not None), default=None)


# --- Azure

_YEARS = re.compile(r"([135]) Years?")


def _azure_reason(item: Mapping[str, Any], instance: str, is_known: Wanted) -> str:
    """Return why an item is no price of a machine to train on; nothing where it is one."""
    product = str(item.get("productName", "")).lower().replace(" ", "")
    words, kind = f"{item.get('skuName', '')} {item.get('meterName', '')}".lower(), item.get("type")
    is_priced = bool(_number(item.get("retailPrice"))) and item.get("unitOfMeasure", "1 Hour") == "1 Hour"
    no_years = _YEARS.fullmatch(str(item.get("reservationTerm", ""))) is None
    reasons = {
        "no machine": not instance or item.get("serviceName", "Virtual Machines") != "Virtual Machines",
        "an instance type that the tables do not hold: no accelerator, or not one of ours": not is_known(instance),
        "another operating system than Linux": "windows" in product,
        "a machine of Cloud Services, or a whole host": "cloudservices" in product or "dedicatedhost" in product,
        "low priority, which can no longer be had": "low priority" in words,
        f"of the type {_short(str(kind))}": kind not in ("Consumption", "Reservation"),
        "a price of 0, or none by the hour": not is_priced,
        "a reservation of another length than years": kind == "Reservation" and no_years,
        "a price for so many hours and more": bool(_number(item.get("tierMinimumUnits", 0))),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _azure(files: Sequence[Path], is_known: Wanted) -> Catalogue:
    """Return what pages of Azure's retail prices hold."""
    items, notes = _all_pages(files, "Items", "NextPageLink")
    found = Catalogue(kind="Azure retail prices", source="Azure retail prices API", num_rows=len(items), notes=notes)
    for item in map(_keys, items):
        instance, price = _part(item.get("armSkuName")), _number(item.get("retailPrice")) or 0.0
        if reason := _azure_reason(item, instance, is_known):
            found.left_out.add(reason, instance)
            continue
        words = f"{item.get('skuName', '')} {item.get('meterName', '')}".lower()
        since = _day(item.get("effectiveStartDate"))
        one = Listed(
            provider="azure",
            instance=instance,
            region=_part(item.get("armRegionName")) or "all",
            term=Term.SPOT if " spot" in words else Term.ON_DEMAND,
            per_h=price,
            currency=_short(str(item.get("currencyCode") or "USD")),
            note="" if since is None else f"in force since {since}",
        )
        if item.get("type") == "Reservation":
            years = str(item.get("reservationTerm"))
            hours = int(years[0]) * H_PER_YEAR
            note = f"{years.lower()}; may be paid month by month"
            one = replace(one, term=Term.RESERVED, per_h=price / hours, committed_h=hours, note=note)
        found.take(one, files[0])
        if _list(item.get("savingsPlan")):
            found.left_out.add("a savings plan beside a price", instance)
    return found


# --- Google Cloud: cores, memory and accelerators are priced apart

_GOOGLE = "Google Cloud documentation, GPU machine types"
_USAGE = {"OnDemand": (Term.ON_DEMAND, 0.0), "Preemptible": (Term.SPOT, 0.0)}
_USAGE |= {"Commit1Yr": (Term.RESERVED, H_PER_YEAR), "Commit3Yr": (Term.RESERVED, 3 * H_PER_YEAR)}
_NOT_OF_MACHINES = ("custom", "sole tenancy", "premium", "reserved", "dws", "calendar", "upgrade")
_UNITS = {"core": "h", "ram": "GiBy.h", "gpu": "h"}
_WORDS = {"core": ("core", "cpu"), "ram": ("ram", "memory")}


@frozen
class _Google:
    """A machine type of Google Cloud, and what the SKUs of its parts are called."""

    num_gpus: int
    vcpus: int
    memory_gib: float
    accelerator: str  # as SkyPilot's catalogue calls it
    # what the SKUs of cores and memory begin with; the first that is priced in a region counts
    families: tuple[str, ...]
    gpu: tuple[str, ...]  # what the SKU of the accelerator has in it, one of them


_GOOGLE_KINDS = {  # cores and GiB for each accelerator (G2: of the whole machine), source: _GOOGLE
    "a2-highgpu": (12, 85, "A100", ("A2",), ("A100 GPU", "A100 40GB GPU")),
    "a2-megagpu": (6, 85, "A100", ("A2",), ("A100 GPU", "A100 40GB GPU")),
    "a2-ultragpu": (12, 170, "A100-80GB", ("A2",), ("A100 80GB GPU",)),
    "a3-highgpu": (26, 234, "H100", ("A3",), ("H100 80GB GPU",)),
    "a3-megagpu": (
        *(26, 234, "H100-MEGA", ("A3Plus", "A3 Plus", "A3Mega", "A3 Mega", "A3")),
        ("H100 80GB Mega GPU", "H100 Mega 80GB GPU", "H100 80GB Plus GPU"),
    ),
    "a3-ultragpu": (28, 369, "H200", ("A3Ultra", "A3 Ultra", "A3"), ("H200 141GB GPU",)),
    "a4-highgpu": (28, 496, "B200", ("A4",), ("B200 GPU", "B200 (1 gpu slice)")),
}
_GOOGLE_G2 = {4: (16, 1), 8: (32, 1), 12: (48, 1), 16: (64, 1), 24: (96, 2), 32: (128, 1), 48: (192, 4), 96: (384, 8)}
_GOOGLE_TYPE = re.compile(
    r"(a2-highgpu|a2-megagpu|a2-ultragpu|a3-highgpu|a3-megagpu|a3-ultragpu|a4-highgpu)-(\d{1,2})g"
)
_GOOGLE_SIZES = {
    "a2-highgpu": (1, 2, 4, 8),
    "a2-ultragpu": (1, 2, 4, 8),
    "a3-highgpu": (1, 2, 4, 8),
    "a2-megagpu": (16,),
}


def _google_machine(instance: str) -> _Google | None:
    """Return a machine type whose size is known.

    >>> machine = _google_machine("a3-highgpu-8g")
    >>> machine.vcpus, machine.memory_gib, machine.accelerator
    (208, 1872, 'H100')
    """
    if parts := _GOOGLE_TYPE.fullmatch(instance):
        vcpus, memory_gib, accelerator, families, gpu = _GOOGLE_KINDS[parts[1]]
        number = int(parts[2])
        return _Google(
            num_gpus=number,
            vcpus=vcpus * number,
            memory_gib=memory_gib * number,
            accelerator=accelerator,
            families=families,
            gpu=gpu,
        )
    if instance.startswith("g2-standard-") and instance[12:].isdigit() and int(instance[12:16]) in _GOOGLE_G2:
        vcpus = int(instance[12:16])
        memory_gib, number = _GOOGLE_G2[vcpus]
        return _Google(
            num_gpus=number, vcpus=vcpus, memory_gib=memory_gib, accelerator="L4", families=("G2",), gpu=("L4 GPU",)
        )
    return None


def _google_machines() -> Iterator[tuple[str, _Google]]:
    """Yield all machine types whose size is known."""
    names = [f"{kind}-{number}g" for kind in _GOOGLE_KINDS for number in _GOOGLE_SIZES.get(kind, (8,))]
    for name in [*names, *(f"g2-standard-{vcpus}" for vcpus in _GOOGLE_G2)]:
        machine = _google_machine(name)
        assert machine is not None, "these are they"
        yield name, machine


@frozen(kw_only=False)
class _Sku:
    """The price of one part of a machine, an hour."""

    part: str  # core, ram or gpu
    words: str
    per_h: float
    currency: str


def _gcp(files: Sequence[Path]) -> Catalogue:
    """Return what Google Cloud's SKUs come to: machines whose cores, memory and accelerators all have prices."""
    skus, notes = _all_pages(files, "skus", "nextPageToken")
    found = Catalogue(kind="Google Cloud SKUs", source="Google Cloud Billing API", num_rows=len(skus), notes=notes)
    priced: dict[tuple[str, str], list[_Sku]] = {}
    for sku in map(_keys, skus):
        _take_sku(sku, priced, found)
    used: set[str] = set()
    for (usage, region), parts in sorted(priced.items()):
        term, committed_h = _USAGE[usage]
        for name, machine in _google_machines():
            chosen = _parts_of(machine, parts)
            if "gpu" not in chosen:
                continue
            used.add(chosen["gpu"].words)
            if missing := [words for part, words in (("core", "cores"), ("ram", "memory")) if part not in chosen]:
                found.left_out.add(f"{term}: no SKU of its {' or '.join(missing)} in the region", f"{name} in {region}")
                continue
            amounts = {"core": machine.vcpus, "ram": machine.memory_gib, "gpu": machine.num_gpus}
            per_h = sum(chosen[part].per_h * amount for part, amount in amounts.items())
            one = Listed(
                provider="gcp",
                instance=name,
                region=region,
                term=term,
                per_h=per_h,
                currency=chosen["gpu"].currency,
                committed_h=committed_h,
                accelerator=machine.accelerator,
                num_accelerators=float(machine.num_gpus),
                vcpus=float(machine.vcpus),
                memory_gib=float(machine.memory_gib),
                note=f"sum of cores, memory and accelerators by {_GOOGLE}; local disks are left out",
            )
            found.take(one, files[0])
    for parts in priced.values():
        for sku_of in parts:
            if sku_of.part == "gpu" and sku_of.words not in used:
                used.add(sku_of.words)
                found.left_out.add("an accelerator of Google Cloud without a machine of its own", sku_of.words)
    return found


def _take_sku(sku: Mapping[str, Any], priced: dict[tuple[str, str], list[_Sku]], found: Catalogue) -> None:
    """Keep the SKU of a part of machines with accelerators, by what it is used as and where; count any other."""
    category, words = _keys(sku.get("category")), _short(str(sku.get("description", "")))
    lower, group = words.lower(), str(category.get("resourceGroup", ""))
    usage, info = str(category.get("usageType", "")), _keys(next(iter(_list(sku.get("pricingInfo"))), None))
    found.published = _latest(found.published, _day(info.get("effectiveTime")))
    part = (
        "gpu"
        if group == "GPU" or "gpu" in lower
        else next(
            (part for part, names in _WORDS.items() if any(re.search(rf"\b{name}\b", lower) for name in names)), ""
        )
    )
    expression = _keys(info.get("pricingExpression"))
    rates = [_keys(_keys(rate).get("unitPrice")) for rate in _list(expression.get("tieredRates"))]
    prices = [price for rate in rates if (price := _google_price(rate))]
    if category.get("resourceFamily", "Compute") != "Compute" or not part:
        reason = "a TPU is priced by the chip, and not as a machine" if "tpu" in lower else "no part of a machine"
    elif usage not in _USAGE:
        reason = f"used as {_short(usage)}"
    elif any(word in lower for word in _NOT_OF_MACHINES):
        reason = "of custom, reserved, upgraded or dedicated machines"
    elif part != "gpu" and not re.search(r"\b(a2|a3|a3plus|a3mega|a3ultra|a4|g2)\b", lower):
        reason = "cores or memory of machines without accelerators"
    elif not prices or expression.get("usageUnit") != _UNITS[part]:
        reason = "a price of 0, or in another unit"
    else:
        currency = next((_short(str(rate["currencyCode"])) for rate in rates if rate.get("currencyCode")), "USD")
        for region in _list(sku.get("serviceRegions")):
            if isinstance(region, str):
                priced.setdefault((usage, _part(region)), []).append(_Sku(part, words, prices[0], currency))
        return
    found.left_out.add(reason, words if part == "gpu" or "tpu" in lower else "")


def _google_price(price: Mapping[str, Any]) -> float:
    """Return the price of a unit: whole units and nanos; 0 where it is none."""
    units, nanos = _number(price.get("units", 0)), _number(price.get("nanos", 0))
    return 0.0 if units is None or nanos is None else units + nanos / 1e9


def _parts_of(machine: _Google, parts: Sequence[_Sku]) -> dict[str, _Sku]:
    """Return the SKU of each part of a machine type, of those in one region."""
    chosen: dict[str, _Sku] = {}
    for words in machine.gpu:
        for sku in parts:
            if sku.part == "gpu" and words.lower() in sku.words.lower():
                chosen.setdefault("gpu", sku)
    for part, names in _WORDS.items():
        for family in machine.families:
            pattern = re.compile(rf"\b{family}( instance)? ({'|'.join(names)})\b", re.IGNORECASE)
            for sku in parts:
                if sku.part == part and pattern.search(sku.words):
                    chosen.setdefault(part, sku)
    return chosen
