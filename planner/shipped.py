"""The files that ship beside the modules that read them: tables, programs, pages."""

from importlib import resources


def shipped_text(package: str, name: str) -> str:
    """Return what stands in a file of a package, which is named from the package's folder on."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
