"""Every row of the tables of faults in `docs/mesh.md` comes from tests, which are named here."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "mesh.md"

MESH, FAULTS, DIRECT = "system/test_mesh.py", "system/test_mesh_faults.py", "system/test_mesh_direct.py"
WORKERS, UNIT = "system/test_workers.py", "unit/test_mesh.py"
STORE, CRASH = "contracts/test_nats_faults.py", "contracts/test_nats_crash.py"
STORE_REFUSALS = [
    (STORE, "test_a_server_that_does_not_fit_is_refused_with_a_reason"),
    (STORE, "test_an_old_server_is_refused"),
    (STORE, "test_more_replicas_than_servers_are_refused"),
    (STORE, "test_a_stream_of_another_program_is_left_alone"),
]

NODES = {
    "a worker is killed": [(WORKERS, "test_a_killed_worker_is_started_again_and_the_node_goes_on")],
    "the supervisor is killed": [(WORKERS, "test_no_worker_outlives_its_supervisor")],
    "`kill -9` of a node": [(MESH, "test_a_node_that_dies_is_noticed_and_its_replicas_take_over")],
    "a node stops, or is restarted": [
        (MESH, "test_a_node_that_stops_says_so_and_is_gone_at_once"),
        ("system/test_rolling_restart.py", "test_a_rolling_restart_of_three_nodes_breaks_no_job_and_no_stream"),
    ],
    "NATS is away": [(MESH, "test_nodes_go_on_alone_while_nats_is_away_and_join_again")],
    "`kill -9` of one NATS server of several, the leader of the store's log too": [
        (FAULTS, "test_a_killed_server_of_a_cluster_costs_its_nodes_one_reconnection"),
        (STORE, "test_in_a_cluster_the_death_of_the_leader_loses_nothing"),
    ],
    "a node is cut off from NATS, without a word": [
        (FAULTS, "test_a_node_whose_connection_falls_silent_goes_on_alone_and_joins_again")
    ],
    "sites are cut off from each other": [
        (MESH, "test_a_site_that_is_cut_off_goes_on_with_its_own_agents_and_joins_again"),
        (FAULTS, "test_sites_that_cannot_reach_each_other_go_on_and_are_one_mesh_again"),
    ],
    "NATS is slow": [(FAULTS, "test_calls_over_a_slow_nats_are_slow_and_right")],
    "a full stream": [(FAULTS, "test_a_full_log_of_the_store_leaves_calls_between_nodes_alone")],
    "NATS without JetStream, or too old for a store": [(FAULTS, "test_an_old_server_without_jetstream_carries_a_mesh")],
    "wrong credentials at NATS": [
        (FAULTS, "test_a_node_with_wrong_credentials_serves_its_own_agents_and_says_why_it_is_alone")
    ],
    "`max_payload` of NATS is too small": [
        (FAULTS, "test_a_server_that_takes_only_small_messages_is_told_with_what_to_set")
    ],
    "NATS refuses a subject that the node needs": [
        (FAULTS, "test_a_right_that_nats_refuses_is_told_with_what_to_grant")
    ],
    "two nodes have one name": [(MESH, "test_of_two_nodes_with_one_name_the_later_gives_way_and_says_so")],
    "clocks are minutes apart": [
        (FAULTS, "test_clocks_that_are_minutes_apart_change_nothing_for_callers"),
        (UNIT, "test_clocks_that_differ_by_minutes_do_no_harm"),
    ],
    "a node has another key, or none": [(MESH, "test_a_node_without_the_key_of_the_mesh_is_no_part_of_it")],
    "a node of an earlier version": [(FAULTS, "test_a_node_of_the_previous_version_is_part_of_the_mesh")],
    "a node whose protocol is too old or too new": [
        (UNIT, "test_a_node_with_a_protocol_that_one_side_does_not_understand_is_not_taken_in_until_it_is_updated")
    ],
    "1,000 nodes join within a minute": [(FAULTS, "test_many_nodes_that_join_within_a_minute_are_all_known")],
    "the caller leaves": [
        (MESH, "test_a_caller_that_leaves_cancels_the_work_at_the_other_node"),
        (DIRECT, "test_a_caller_that_leaves_cancels_the_work_at_the_other_node"),
    ],
    "the deadline passes at the other node": [(MESH, "test_a_deadline_holds_over_nodes")],
    "a request or a reply of 10 MB": [
        (FAULTS, "test_a_message_of_ten_megabytes_arrives_whole_both_ways_or_is_refused"),
        (MESH, "test_replies_of_any_size_arrive_whole"),
    ],
    "a node is not reached over HTTP (`mesh.direct`)": [
        (DIRECT, "test_a_node_that_is_not_reached_over_http_is_called_over_nats")
    ],
    "a connection over HTTP breaks under a call": [
        (DIRECT, "test_a_connection_that_breaks_under_a_call_interrupts_it_and_the_next_call_is_answered")
    ],
}
OF_THE_STORE = {
    "`kill -9` of a node": [(CRASH, "test_killed_nodes_and_a_killed_server_lose_and_double_nothing")],
    "`kill -9` of the only server": [
        (STORE, "test_a_server_that_was_killed_has_everything_when_it_is_back"),
        (STORE, "test_a_node_without_nats_says_so_and_recovers"),
    ],
    "`kill -9` of the leader, three servers": [
        (STORE, "test_in_a_cluster_the_death_of_the_leader_loses_nothing"),
        (CRASH, "test_killed_nodes_and_leaders_of_a_cluster_lose_and_double_nothing"),
    ],
    "`kill -9` of another server": [(CRASH, "test_killed_nodes_and_servers_of_a_cluster_lose_and_double_nothing")],
    "the answer to a write is lost": [(STORE, "test_a_write_whose_answer_is_lost_is_done_once")],
    "a node is cut off from NATS": [
        (STORE, "test_when_the_connection_is_cut_writes_wait_and_reads_go_on"),
        (STORE, "test_what_happened_while_a_node_was_cut_off_reaches_it_when_it_is_back"),
    ],
    "NATS is slow or frozen": [
        (STORE, "test_a_slow_nats_slows_writes_and_loses_none"),
        (STORE, "test_a_frozen_server_makes_writes_fail_in_time"),
    ],
    "the log is full": [(STORE, "test_a_full_log_refuses_writes_and_frees_itself")],
    "two nodes write at the same time": [(STORE, "test_two_nodes_that_write_at_the_same_time_make_one_history")],
    "a node was away for longer than the log reaches back": [
        (STORE, "test_a_node_that_was_away_for_long_goes_on_from_a_snapshot")
    ],
    "wrong credentials, missing rights, wrong TLS, no JetStream, a server older than 2.10, a small `max_payload`, "
    "fewer servers than replicas, a stream of another program": STORE_REFUSALS,
    "a node of an older version, after a newer one changed the tables": [(STORE, "test_a_newer_schema_is_refused")],
    "a server lost confirmed writes, or its streams were deleted": [
        (STORE, "test_a_server_that_lost_confirmed_writes_is_noticed")
    ],
    "the clock of a node is two minutes off": [
        (STORE, "test_the_clock_of_the_server_counts"),
        (STORE, "test_leases_end_by_one_clock_on_all_nodes"),
    ],
    "a value of 10 MB, also while other nodes write": [
        (STORE, "test_a_value_of_ten_megabytes_goes_to_all_nodes"),
        (STORE, "test_a_node_lets_another_one_finish_a_batch_of_several_messages"),
    ],
}


def read_faults(heading: str) -> list[str]:
    """The first column of the table below a heading."""
    section = re.split(r"^#+ ", PAGE.read_text().partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]


def test_every_fault_of_workers_and_nodes_has_its_tests() -> None:
    assert read_faults("## Faults of workers and nodes") == list(NODES)


def test_every_fault_of_the_store_has_its_tests() -> None:
    assert read_faults("### Faults of the store") == list(OF_THE_STORE)


def test_the_tests_of_all_faults_exist() -> None:
    named = [test for tests in (*NODES.values(), *OF_THE_STORE.values()) for test in tests]
    sources = {file: (TESTS / file).read_text() for file, _ in named}
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in sources[file]]
    assert not missing
