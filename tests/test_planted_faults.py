"""The faults that `benchmarks/mutation.py` plants are in today's code, tests and guards."""

import re

import pytest

from benchmarks.mutation import ROOT, Guard, PlantedFault, guards, planted_faults

FAULTS = planted_faults()
REMEDY = "after a change of the code, change the fault in benchmarks/planted_faults.toml, too"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_at_one_place(fault: PlantedFault) -> None:
    assert fault.occurrences(ROOT) == 1, REMEDY
    assert fault.new != fault.old
    files = [ROOT / name.partition("::")[0] for name in fault.tests]
    assert [file for file in files if not file.exists()] == [], REMEDY


def test_names_tell_faults_apart() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) > 100


GUARDS = guards()


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.planted.name)
def test_the_fault_of_a_guard_can_be_planted_and_its_script_is_there(guard: Guard) -> None:
    assert guard.planted.occurrences(ROOT) == 1, REMEDY
    assert guard.planted.new != guard.planted.old
    [script] = re.findall(r"benchmarks/\w+\.py", guard.commands[-1])
    assert (ROOT / script).exists()
    # A script that cannot end with 1 cannot fail.
    assert re.search(r"sys\.exit\(", (ROOT / script).read_text()), script


def test_the_page_names_each_guard_with_its_promise_and_its_fault() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text()
    for guard in GUARDS:
        assert f"| `{guard.planted.name}` | {guard.promise} | {guard.description} |" in page
