"""Parity fixtures: what a file may hold, how a fault in it is told, and that the committed ones are whole.

Thread: any
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.bench.parity import WIRE_SUITES
from lattice_cli.bench.parity_body import json_bytes, raw_bytes
from lattice_cli.bench.parity_case import Case, read_cases
from lattice_cli.errors import BenchError

pytestmark = pytest.mark.pure

FIXTURES = Path(__file__).parents[2] / "fixtures" / "parity"
GOOD: dict[str, Any] = {"name": "one", "request": {"body": {}}, "expect": {"status": 400}}
TABLE = (*range(1, 19),)
# The tests at the end of the sources of both versions; those of 0.6.1 hold all of 0.5.0's.
CANCELLED = (
    "queued_job_cancelled_before_dequeue_is_skipped_entirely",
    "running_job_cancelled_midstream_stops_early_and_worker_survives",
    "running_job_cancelled_during_prefill_like_phase_never_calls_on_token",
    "generation_failure_is_reported_as_ev_failed_not_ev_done",
)
TESTS_061 = (
    *CANCELLED,
    "message_content_plain_string_to_chat_message",
    "message_content_parts_concatenate_in_order",
    "message_content_image_url_rejected",
    "message_content_unknown_part_rejected",
    "message_role_unknown_rejected",
    "message_role_tool_rejected_as_unsupported_feature",
    "message_role_developer_rejected_as_unsupported_feature",
    "parse_chat_req_rejects_too_many_parts_before_typed_parse",
    "parse_chat_req_accepts_max_parts_boundary",
    "parse_chat_req_rejects_oversized_text_part_before_typed_parse",
    "build_cfg_clamps_to_runtime_context",
    "check_prompt_fits_window_rejects_when_prompt_plus_decode_overflows",
    "check_prompt_fits_window_rejects_one_slot_over",
    "check_prompt_fits_window_accepts_exact_boundary_no_needless_truncation",
    "check_prompt_fits_window_accepts_ordinary_prompt_unclamped",
    "model_context_uses_config_max_position_embeddings",
    "model_context_falls_back_to_4096_when_absent",
    "chat_completions_tools_400",
    "chat_completions_tool_choice_400",
    "chat_completions_json_response_format_400",
    "chat_completions_n_greater_than_one_400",
    "chat_completions_logprobs_400",
    "chat_completions_stop_400",
    "chat_completions_conflicting_max_tokens_400",
    "chat_completions_max_tokens_zero_400",
    "chat_completions_non_streaming_finish_reason_stop_when_engine_stopped",
    "chat_completions_non_streaming_finish_reason_length_when_not_stopped",
    "chat_completions_streaming_finish_reason_stop_when_engine_stopped",
    "chat_completions_streaming_finish_reason_length_when_not_stopped",
    "chat_completions_streaming_context_overflow_returns_400_before_committing_sse",
    "build_cfg_aliases_max_completion_tokens_when_max_tokens_absent",
    "cm_lattice_serve_model_mismatch_accepted_expected_deviation",
    "streaming_context_overflow_matches_the_other_server",
    "observation_captures_real_config_and_messages",
    "observation_captures_real_stopped_false",
)


def suite(name: str) -> list[Case]:
    return read_cases(FIXTURES / f"{name}.jsonl")


def refused(tmp_path: Path, *lines: str) -> BenchError:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(BenchError) as caught:
        read_cases(path)
    assert caught.value.exit_code == 4
    assert caught.value.message.startswith(f"`{path}` line ")
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": 5}, "Expected `str`, got `int` - at `$.name`"),
        ({"expects": {}}, "unknown field `expects`"),
        ({"request": None}, "a case has `request` and `expect`, or `steps`"),
        ({"steps": [{"do": "leave", "of": "a"}]}, "a case has `request` and `expect`, or `steps`"),
        ({"script": {}, "model": "llama"}, "a case has a `script` or a `model`"),
        ({"expect": {"status": "400"}}, "Expected `int`, got `str` - at `$.expect.status`"),
        ({"expect": {"fields": [{"at": "/a"}]}}, "a check has one rule, not 0 - at `$.expect.fields[0]`"),
        ({"expect": {"fields": [{"at": "/a", "equals": 1, "prefix": "b"}]}}, "a check has one rule, not 2"),
        ({"expect": {"fields": [{"at": "a", "equals": 1}]}}, "`a` is no JSON pointer"),
        ({"expect": {"sse": ["opener"]}}, "$.expect.sse[0]"),
        ({"expect": {"sse": [{"finish": "stop", "content": "x"}]}}, "a phase has one name"),
        ({"request": {"body": {"x": {"repeat": ["a"]}}}}, "`repeat` is a value and a count"),
        ({"request": {"body": {"x": {"repeat": ["a", 1 << 40]}}}}, "`repeat` is a value and a count"),
        ({"request": {"raw": [{"hex": "zz"}]}}, "non-hexadecimal"),
        ({"request": {"raw": [{"hex": "00", "json": 1}]}}, "a part is one of `hex`, `repeat`, `json`"),
    ],
)
def test_a_malformed_line_is_told_with_file_and_line(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    error = refused(tmp_path, json.dumps(GOOD), "", json.dumps({**GOOD, "name": "two", **change}))
    assert "line 3: " in error.message
    assert fault in error.message


def test_a_line_that_is_no_json_or_a_name_twice_is_told_too(tmp_path: Path) -> None:
    assert "line 1: " in refused(tmp_path, '{"name": ').message
    assert "line 2: there is a case `one` already" in refused(tmp_path, json.dumps(GOOD), json.dumps(GOOD)).message


@pytest.mark.parametrize(
    "steps",
    [
        [{"do": "leave", "of": "a"}],
        [{"do": "send", "name": "a", "request": {}}, {"do": "same", "of": ["a", "a"], "at": "/x"}],
        [{"do": "send", "name": "a", "request": {}}, {"do": "expect", "of": "b", "expect": {}}],
    ],
)
def test_a_step_before_its_call_is_malformed(tmp_path: Path, steps: list[Any]) -> None:
    assert "too early" in refused(tmp_path, json.dumps({"name": "one", "steps": steps})).message


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="No such file"):
        read_cases(tmp_path / "none.jsonl")


def test_generators_make_long_texts_lists_and_any_bytes(tmp_path: Path) -> None:
    assert json_bytes({"a": {"repeat": ["xy", 3]}, "b": {"repeat": [{"c": {"repeat": ["é", 2]}}, 2]}}) == (
        '{"a":"xyxyxy","b":[{"c":"éé"},{"c":"éé"}]}'.encode()
    )
    line = {**GOOD, "request": {"raw": ["[", {"hex": "ff00"}, {"repeat": ["ab", 2]}, {"json": {"repeat": [0, 2]}}]}}
    (tmp_path / "raw.jsonl").write_text(json.dumps(line))
    (case,) = read_cases(tmp_path / "raw.jsonl")
    assert case.request is not None and isinstance(case.request.raw, tuple)
    assert raw_bytes(case.request.raw) == b"[\xff\x00abab[0,0]"


@pytest.mark.parametrize("name", WIRE_SUITES)
def test_every_row_of_the_cross_server_table_has_a_case(name: str) -> None:
    notes = [case.note for case in suite(name)]
    for number in TABLE:
        assert len([note for note in notes if note.startswith(f"cross-server table, row {number},")]) == 1 or (
            name == "lattice-0.6.1" and f"cross-server table, row {number}" in {note.split(";")[0] for note in notes}
        )


def test_every_test_of_the_sources_has_a_case() -> None:
    assert set(TESTS_061) - {case.name for case in suite("lattice-0.6.1")} == set()
    assert set(CANCELLED) - {case.name for case in suite("lattice-0.5.0")} == set()


@pytest.mark.parametrize("name", WIRE_SUITES)
def test_the_overflow_row_and_the_observation_are_in_every_suite(name: str) -> None:
    notes = " ".join(case.note for case in suite(name))
    assert "the overflow row" in notes
    assert "the observation case" in notes


@pytest.mark.parametrize("name", ["lattice-0.5.0", "lattice-0.6.1"])
def test_every_case_of_a_seed_names_its_policy(name: str) -> None:
    assert {case.policy for case in suite(name)} == {name}


@pytest.mark.parametrize("name", WIRE_SUITES)
def test_a_committed_file_is_one_case_a_line_for_every_reader(name: str) -> None:
    """Report 8 in our own files: U+2028 inside a string cuts a line for those that split lines as Unicode does."""
    text = (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8")
    assert text.splitlines() == text.removesuffix("\n").split("\n")
