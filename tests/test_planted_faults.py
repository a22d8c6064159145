"""The faults that `benchmarks/mutation.py --planted` plants are in today's code and tests."""

import pytest

from benchmarks.mutation import ROOT, PlantedFault, planted_faults

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
