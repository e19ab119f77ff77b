"""Discovery of plugins: from real metadata on disk, without importing what nobody asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fsbench import errors, plugins
from fsbench.axes import AXES
from fsbench.errors import UserError
from fsbench.options import Spec
from fsbench.plugins import ClassifiedPlugin, FoundPlugin, create, find_plugin, find_plugins, load_plugin
from fsbench.summary import summary
from tests.fakes import install, install_acme

OPTIONS = """
from dataclasses import dataclass
from fsbench.axes import Sharding

class Mine(Sharding):
    {}
    class Options:
        one: {} = None

    def assign(self, batch): ...
"""
IMPORTED = "raise RuntimeError('imported')\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on the import path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def found(value: str, name: str = "mine", kind: str = "sharding") -> FoundPlugin:
    return FoundPlugin(kind, name, value, "third-party", "1.0")


def names(kind: str) -> list[str]:
    return [plugin.name for plugin in find_plugins(kind)]


def test_the_kinds_are_the_axes_and_workloads_and_clusters():
    assert (*AXES, "workloads", "clusters") == plugins.KINDS


def test_builtins_come_through_the_same_entry_points_as_anyones():
    assert set(names("sharding")) >= {"naive", "cost-aware"}
    assert {plugin.distribution for plugin in find_plugins("sync")} == {"fsbench"}


def test_a_third_party_plugin_is_found_with_its_origin_and_not_imported(site: Path):
    install(site, "third-party", {"sharding": {"mine": "never_imported:Mine"}}, {"never_imported.py": IMPORTED}, "2.1")
    plugin = find_plugin("sharding", "mine")
    assert plugin == FoundPlugin("sharding", "mine", "never_imported:Mine", "third-party", "2.1")
    assert "never_imported" not in sys.modules


def test_plugins_are_listed_by_name_whatever_the_order_of_installation(site: Path):
    install(site, "zebra", {"sync": {"a-sync": "z:A"}})
    install(site, "aardvark", {"sync": {"z-sync": "a:Z", "m-sync": "a:M"}})
    assert [name for name in names("sync") if name.endswith("-sync")] == ["a-sync", "m-sync", "z-sync"]


def test_a_distribution_that_lies_twice_on_the_path_counts_once(site: Path, tmp_path: Path, monkeypatch):
    for folder in (site, tmp_path / "again"):
        install(folder, "third-party", {"sync": {"mine": "m:M"}})
    monkeypatch.syspath_prepend(str(tmp_path / "again"))
    assert names("sync").count("mine") == 1


def test_plugins_of_one_name_are_listed_by_distribution(site: Path):
    for name in ("zebra", "aardvark", "mole"):
        install(site, name, {"sync": {"mine": "m:M"}})
    mine = [plugin.distribution for plugin in find_plugins("sync") if plugin.name == "mine"]
    assert mine == ["aardvark", "mole", "zebra"]


def test_a_distribution_that_offers_a_name_twice_is_told_with_both_places(site: Path):
    install(site, "third-party", {"sync": {"mine": "a:A\nmine = b:B"}})
    with pytest.raises(UserError, match=r"by third-party 1\.0 \(a:A\) and third-party 1\.0 \(b:B\)"):
        find_plugin("sync", "mine")


def test_entry_points_of_other_groups_are_ignored(site: Path):
    install(site, "third-party", {"themes": {"dark": "m:M"}})
    assert "dark" not in [plugin.name for kind in plugins.KINDS for plugin in find_plugins(kind)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("all", "'all' means every plugin on the command line"),
        ("two words", "a name has letters, digits, '_', '.' and '-' only"),
        ("-", "begins with a letter or digit"),
        ("a:b", "a name has letters"),
    ],
)
def test_a_name_that_nobody_could_ask_for_is_listed_and_refused_with_a_reason(site: Path, name: str, reason: str):
    install(site, "third-party", {"sync": {name: "m:M"}})
    assert name in names("sync")
    with pytest.raises(UserError) as error:
        load_plugin("sync", name)
    assert str(error.value).startswith(f"sync strategy {name} (third-party 1.0) is refused: ")
    assert reason in str(error.value)


def test_unreadable_metadata_of_one_package_hides_no_other(site: Path):
    install(site, "third-party", {"sync": {"mine": "m:M"}})
    broken = site / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[fsbench.sync]\nno equals sign\n")
    with pytest.warns(UserWarning, match=r"ignored a package with unreadable metadata, .*broken-1\.0"):
        assert "mine" in names("sync")


def test_an_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="unknown axis 'shardin'; did you mean sharding"):
        find_plugins("shardin")


def test_an_unknown_name_is_refused_with_the_nearest_and_all_valid_ones():
    with pytest.raises(UserError) as error:
        load_plugin("collectives", "backnd")
    assert str(error.value) == (
        "unknown collectives strategy 'backnd'; did you mean backend? valid: backend, copy-engine, host-staged"
    )


def test_a_name_that_two_distributions_offer_is_listed_twice_and_refused_only_when_asked_for(site: Path):
    install(site, "first", {"sync": {"mine": "a:A"}}, version="1.0")
    install(site, "second", {"sync": {"mine": "b:B"}}, version="2.0")
    assert names("sync").count("mine") == 2
    assert load_plugin("sync", "allreduce").found.name == "allreduce"
    with pytest.raises(UserError, match=r"'mine' is offered by first 1\.0 \(a:A\) and second 2\.0 \(b:B\); uninst"):
        load_plugin("sync", "mine")


def test_a_broken_plugin_names_its_distribution_and_keeps_its_cause(site: Path):
    install(site, "third-party", {"sync": {"mine": "broken_import:M"}}, {"broken_import.py": "import nowhere_found"})
    with pytest.raises(UserError, match=r"third-party 1\.0\) cannot be loaded: ModuleNotFoundError.*nowhere") as error:
        load_plugin("sync", "mine")
    assert isinstance(error.value.__cause__, ModuleNotFoundError)


def test_a_plugin_that_exits_on_import_does_not_end_the_program(site: Path):
    install(site, "third-party", {"sync": {"mine": "exits:M"}}, {"exits.py": "raise SystemExit(3)"})
    with pytest.raises(UserError, match="SystemExit: 3"):
        load_plugin("sync", "mine")


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("", "AttributeError"),
        ("Mine = 3", "is not a subclass of fsbench.axes.Sharding"),
        ("class Mine: pass", "is not a subclass of fsbench.axes.Sharding"),
        ("from fsbench.axes import Sharding as Mine", "does not define assign, which fsbench.axes.Sharding asks for"),
        (OPTIONS.format("@dataclass", "int"), "off_contract:Mine has Options that are not a frozen dataclass"),
        (OPTIONS.format("", "int"), "has Options that are not a frozen dataclass"),
        (OPTIONS.format("@dataclass(frozen=True)", "list"), "cannot be typed: one is of type <class 'list'>"),
        (OPTIONS.format("@dataclass(frozen=True)", "'Nowhere'"), "cannot be typed: NameError"),
    ],
)
def test_a_plugin_that_does_not_keep_its_contract_is_refused(site: Path, monkeypatch, source: str, fault: str):
    monkeypatch.delitem(sys.modules, "off_contract", raising=False)
    install(site, "third-party", {"sharding": {"mine": "off_contract:Mine"}}, {"off_contract.py": source})
    with pytest.raises(UserError, match=fault):
        load_plugin("sharding", "mine")


def test_create_makes_an_instance_with_typed_options(site: Path):
    install_acme(site)
    assert create("sync", Spec.parse("shadow:alpha=0.25")).options.alpha == 0.25


def test_create_refuses_an_unknown_option_and_names_the_plugin(site: Path):
    install_acme(site)
    with pytest.raises(UserError, match=r"sync strategy shadow \(acme 1\.0\) has no option 'alfa'; did you mean alpha"):
        create("sync", Spec.parse("shadow:alfa=1"))


def test_create_reports_a_constructor_that_fails(site: Path):
    source = """
        from fsbench.axes import Sharding

        class Mine(Sharding):
            def __init__(self, options):
                raise OSError("no licence")

            def assign(self, batch): ...
    """
    install(site, "third-party", {"sharding": {"mine": "unbuildable:Mine"}}, {"unbuildable.py": source})
    with pytest.raises(UserError, match=r"third-party 1\.0\) cannot be created: OSError: no licence"):
        create("sharding", Spec("mine"))


@pytest.mark.parametrize("error", ["UserError", "Unsupported", "DataError"])
def test_what_a_constructor_explains_is_told_with_the_plugin_it_is_of(site: Path, error: str):
    source = f"""
        from fsbench import errors
        from fsbench.axes import Sharding

        class Mine(Sharding):
            def __init__(self, options):
                raise errors.{error}("no licence")

            def assign(self, batch): ...
    """
    install(site, "third-party", {"sharding": {"mine": f"explains_{error}:Mine"}}, {f"explains_{error}.py": source})
    with pytest.raises(getattr(errors, error), match=r"^sharding strategy mine \(third-party 1\.0\): no licence$"):
        create("sharding", Spec("mine"))


def test_a_loaded_plugin_is_of_another_type_than_a_found_one(site: Path):
    install_acme(site)
    loaded = load_plugin("sync", "shadow")
    assert isinstance(loaded, ClassifiedPlugin)
    assert loaded.found == find_plugin("sync", "shadow")
    assert loaded.cls.__name__ == "Shadow"


def test_the_summary_is_the_first_docstring_line_and_nothing_is_imported(site: Path):
    source = IMPORTED + 'class Mine:\n    """One line.\n\n    More.\n    """\n'
    for file in ("sealed/__init__.py", "sealed/inner/__init__.py"):
        (site / file).parent.mkdir(exist_ok=True)
        (site / file).write_text(IMPORTED)
    (site / "sealed/inner/leaf.py").write_text(source)
    (site / "sealed_top.py").write_text(source)
    assert summary(found("sealed.inner.leaf:Mine")) == "One line."
    assert summary(found("sealed_top:Mine")) == "One line."
    assert not [module for module in sys.modules if module.startswith("sealed")]


def test_the_summary_of_a_nested_class_and_of_a_class_in_a_package_file_are_found(site: Path):
    (site / "nest").mkdir()
    (site / "nest/__init__.py").write_text('class Outer:\n    class Inner:\n        """Deep."""\n')
    assert summary(found("nest:Outer.Inner")) == "Deep."


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("nosum:Mine", b"class Mine: pass"),
        ("nosum:Mine", b"class Other:\n    'Not mine.'"),
        ("nosum:Mine", b"Mine = 3"),
        ("nosum:Mine", b'class Mine:\n    """   """'),
        ("nosum:Mine", b"class Mine(: this is no Python"),
        ("nosum:Mine", b"\x00\xff"),
        ("nosum", b"class Mine:\n    'No attribute is named.'"),
        ("nowhere_at_all.x:Mine", b""),
        ("nosum.deeper:Mine", b""),
        (":Mine", b""),
        ("sys:Mine", b""),
    ],
)
def test_a_summary_that_cannot_be_read_says_so(site: Path, value: str, source: bytes):
    (site / "nosum.py").write_bytes(source)
    assert summary(found(value)) == "(no summary)"


def test_every_builtin_has_a_summary():
    ours = [plugin for kind in plugins.KINDS for plugin in find_plugins(kind) if plugin.distribution == "fsbench"]
    assert [plugin.name for plugin in ours if summary(plugin) == "(no summary)"] == []
