"""What can hurt, and the tests that show that it does not: the table of docs/security.md."""

import re

import pytest

from tests.conftest import SOURCES

ROWS: dict[str, tuple[str, ...]] = {
    "Pickles": (
        "tests/security/test_code.py::test_nothing_is_unpickled",
        "tests/security/test_models.py::test_pickled_weights_are_never_loaded",
        "tests/hierrouter/runs/test_checkpoint.py::test_a_wrong_file_is_named_for_what_it_is",
        "tests/hierrouter/collection/test_rows.py::test_a_bad_file_is_one_line",
    ),
    "Code of models": (
        "tests/acceptance/test_bad_inputs.py::test_bad_input",
        "tests/security/test_code.py::test_what_is_shut_stays_shut",
        "tests/security/test_models.py::test_code_of_a_tokenizer_is_never_run",
        "tests/security/test_models.py::test_code_of_an_encoder_is_never_run",
        "tests/security/test_models.py::test_a_chat_template_reaches_nothing",
        "tests/security/test_models.py::test_a_template_that_fails_is_one_line",
    ),
    "Code named in files": (
        "tests/hierrouter/learning/test_own_algorithm.py::test_the_checkpoint_names_the_factory_and_needs_none",
        "tests/cli/test_curves.py::test_no_file_brings_code_to_run",
    ),
    "Terminal escapes": (
        "tests/hierrouter/reports/test_render.py::test_each_character_of_a_family_becomes_visible",
        "tests/security/test_terminal.py::test_no_command_lets_a_family_through",
        "tests/security/test_terminal.py::test_no_file_that_a_command_wrote_steers",
        "tests/security/test_terminal.py::test_a_trace_in_the_log_of_the_server_steers_nothing",
        "tests/security/test_live.py::test_route_lets_no_family_of_a_server_through",
        "tests/cli/test_endpoint.py::test_a_nasty_text_is_an_answer",
    ),
    "Text that no program takes": (
        "tests/security/test_doors.py::test_no_text_breaks_a_door",
        "tests/security/test_doors.py::test_every_route_has_a_door",
        "tests/security/test_doors.py::test_every_flag_that_takes_a_file_has_a_door",
        "tests/security/test_doors.py::test_every_module_that_reads_has_a_door",
        "tests/hierrouter/serving/test_logs.py::test_a_poisoned_line_does_not_take_the_others_along",
    ),
    "Markup": (
        "tests/hierrouter/reports/test_render.py::test_terminal_is_safe_from_names",
        "tests/security/test_terminal.py::test_a_bar_shows_names_as_they_are",
    ),
    "SQL": ("tests/cache/test_views.py::test_nothing_else_can_be_asked",),
    "Odd Parquet": (
        "tests/cache/test_damage.py::test_a_part_with_more_rows_than_any_of_ours_is_refused_unread",
        "tests/cache/test_damage.py::test_a_part_that_hides_its_number_of_rows_is_refused_by_its_footer",
        "tests/security/test_files.py::test_a_text_that_is_said_a_million_times_takes_no_memory",
    ),
    "Large small files": (
        "tests/security/test_small_files.py::test_a_small_hostile_file_is_refused_at_once",
    ),
    "Paths": (
        "tests/security/test_files.py::test_ids_and_names_become_no_path",
        "tests/acceptance/test_bad_inputs.py::test_bad_input",
    ),
    "Links and pipes": (
        "tests/cache/test_damage.py::test_a_folder_a_pipe_or_a_device_with_the_name_of_a_part_is_no_part",
        "tests/security/test_files.py::test_a_lock_that_is_a_link_empties_no_file",
        "tests/security/test_files.py::test_nothing_is_swept_behind_a_link",
        "tests/security/test_files.py::test_a_pipe_is_no_embedding_file_and_a_link_is_what_it_leads_to",
    ),
    "Runs of others": (
        "tests/security/test_files.py::test_any_live_json_is_taken_or_refused",
        "tests/security/test_files.py::test_any_description_of_a_policy_is_taken_or_refused",
        "tests/security/test_files.py::test_a_shape_that_is_not_the_weights_takes_no_memory",
        "tests/security/test_files.py::test_json_that_has_no_end_is_no_run",
        "tests/security/test_files.py::test_rows_of_another_kind_are_not_read_beyond_their_end",
    ),
    "HTML": (
        "tests/browser/test_page.py::test_hostile_text_is_read_and_does_nothing",
        "tests/browser/test_page.py::test_a_page_asks_for_nothing_and_says_nothing",
        "tests/browser/test_explore.py::test_hostile_text_is_read_and_does_nothing",
        "tests/browser/test_explore.py::test_the_policy_of_the_page_stops_scripts_that_are_not_its_own",
    ),
    "Spreadsheets": (
        "tests/hierrouter/reports/test_render.py::test_csv_formula_is_neutralised",
        "tests/hierrouter/reports/test_render.py::test_csv_cells_are_inert",
        "tests/hierrouter/collection/test_exporters.py::test_no_cell_of_a_csv_is_a_formula",
        "tests/security/test_terminal.py::require_inert",
    ),
    "Keys": (
        "tests/security/test_keys.py::test_no_key_is_found_anywhere",
        "tests/hierrouter/engines/test_endpoint.py::test_a_key_goes_to_the_server_and_nowhere_else",
        "tests/hierrouter/engines/test_endpoint.py::test_a_key_is_not_shown_in_part",
        "tests/cli/test_collect.py::test_a_stored_plan_does_not_decide_where_a_key_goes",
        "tests/security/test_live.py::test_a_run_of_others_does_not_decide_where_a_key_goes",
        "tests/security/test_live.py::test_a_key_in_place_of_its_variable_is_not_repeated",
    ),
    "Endpoints": (
        "tests/cli/test_endpoint.py::test_a_key_over_plain_http",
        "tests/cli/test_endpoint.py::test_a_redirect",
        "tests/hierrouter/engines/test_endpoint.py::test_a_redirect_takes_no_key_along",
        "tests/hierrouter/engines/test_addresses.py::test_a_proxy_is_asked_for_nothing_that_is_not_called",
    ),
    "Our server": (
        "tests/hierrouter/serving/test_serve.py::test_a_server_with_a_key_requires_it",
        "tests/security/test_live.py::test_a_page_whose_name_leads_here_is_refused",
        "tests/security/test_live.py::test_no_page_of_another_origin_can_ask_or_read",
        "tests/security/test_live.py::test_an_odd_request_is_one_request_and_refused",
        "tests/security/test_live.py::test_a_body_that_does_not_say_its_length_is_cut",
        "tests/security/test_live.py::test_a_body_that_means_harm_is_refused_in_one_line",
        "tests/security/test_live.py::test_the_log_of_questions_is_for_nobody_else",
    ),
    "Answers": (
        "tests/security/test_answers.py::test_no_answer_is_run",
        "tests/security/test_answers.py::test_no_answer_takes_a_pattern_for_ever",
        "tests/security/test_code.py::test_nothing_is_run_that_is_text",
    ),
    "Programs in answers": (
        "tests/hierrouter/questions/test_programs.py::test_a_hostile_program_is_wrong_and_leaves_nothing",
        "tests/hierrouter/questions/test_programs.py::test_a_user_without_rights_confines_programs_too",
        "tests/hierrouter/questions/test_programs.py::test_programs_end_with_who_asked_for_them",
        "tests/hierrouter/questions/test_programs.py::test_nothing_runs_where_programs_cannot_be_confined",
        "tests/cli/test_run_code.py::test_without_the_flag_accuracy_is_absent_everywhere",
        "tests/cli/test_run_code.py::test_without_user_namespaces_a_command_refuses_to_run_programs",
        "tests/security/test_code.py::test_programs_are_run_in_the_confined_process_only",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_of_a_row_are_there(row: str) -> None:
    assert ROWS[row]
    for named in ROWS[row]:
        file, _, function = named.partition("::")
        assert f"\ndef {function}(" in (SOURCES / file).read_text(), named


def test_the_page_tells_of_each_row() -> None:
    told = re.findall(r"^\| \*\*(.+?)\*\* \|", (SOURCES / "docs" / "security.md").read_text(), re.M)
    assert told == list(ROWS)
