"""What went wrong in systems like this one, by its number in the list of known failures, and the tests that it can't happen here.

The list names accounting's (what is admitted, charged, ended for idleness) and hardware's: foreign use, figures that are not told, drivers
that hang or don't fit, cards that move. This index can't rot: each test is looked up.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent

KNOWN: dict[int, tuple[str, dict[str, tuple[str, ...]]]] = {
    6: (
        "time on cards is not charged to the fair share",
        {"jobs/test_accounting.py": ("test_cards_weigh_and_a_job_without_one_does_not",)},
    ),
    11: (
        "foreign processes are invisible, and jobs start into them",
        {
            "scheduler/test_fit.py": (
                "test_foreign_use_counts_only_above_the_floor",
                "test_a_foreign_process_of_12g_keeps_a_16g_job_off_and_is_named",
            ),
            "nodes/test_foreign.py": ("test_whoever_runs_it_is_told_politely_once_for_all_their_processes",),
        },
    ),
    13: (
        "use is counted wrongly, and a job is killed for it",
        {
            "jobs/test_overuse.py": (
                "test_a_context_of_300_mib_and_what_a_driver_rounds_are_nobodys_business",
                "test_what_stays_above_is_told_first_and_stopped_after_a_minute_and_its_neighbour_runs_on",
            )
        },
    ),
    14: (
        "what was asked for is charged, not what ran",
        {"jobs/test_accounting.py": ("test_a_job_that_dies_early_is_charged_what_it_ran_not_what_it_asked_for",)},
    ),
    15: (
        "a requeued job is settled twice",
        {"jobs/test_accounting.py": ("test_a_requeued_job_is_charged_for_both_laps_and_counts_as_one_finished_job",)},
    ),
    17: (
        "limits are looked at first and taken later",
        {
            "jobs/test_accounting.py": (
                "test_of_many_submits_at_once_exactly_the_limit_is_admitted",
                "test_cards_held_never_pass_the_limit_in_the_log_of_events_also_over_the_months_end",
            ),
            "jobs/test_model_caps.py": ("test_passes_at_once_never_pass_a_limit_by_model",),
        },
    ),
    21: (
        "memory is in use and nobody has it",
        {
            "nodes/test_api.py": ("test_ghost_use_is_no_free_memory_and_no_idle_card",),
            "nodes/test_foreign.py": ("test_each_card_remembers_a_process_once",),
            "agent/test_runner_parts.py": ("test_foreign_use_stays_known_between_two_lists",),
        },
    ),
    31: (
        "boards with the host's memory",
        {
            "agent/test_nvml.py": ("test_memory_not_supported_is_the_hosts_on_known_boards_and_unknown_elsewhere",),
            "nodes/test_inventory.py": ("test_memory_that_is_not_told_is_none_never_zero",),
            "scheduler/test_fit.py": ("test_a_card_of_unknown_size_holds_nothing_and_does_not_count_as_zero",),
        },
    ),
    33: ("the driver's own share counts as use", {"agent/test_nvml.py": ("test_an_idle_card_with_reserved_memory_is_idle",)}),
    34: (
        "a fan that is not there breaks all",
        {
            "agent/test_conformance.py": ("test_what_a_card_does_not_tell_is_none_and_never_0",),
            "jobs/test_metrics.py": ("test_what_is_none_has_no_series_and_0_has_one",),
        },
    ),
    35: (
        "one unsupported metric kills the exporter",
        {
            "agent/test_nvml.py": ("test_one_failing_getter_stops_neither_its_card_nor_the_other",),
            "agent/test_nvml_cards.py": ("test_a_getter_that_fails_takes_its_own_fields_and_no_others",),
        },
    ),
    36: (
        "WSL tells neither use nor processes",
        {
            "agent/test_nvml.py": ("test_a_system_that_lists_no_processes_says_none",),
            "nodes/test_api.py": ("test_idle_is_said_only_of_a_card_that_is_known_to_be",),
            "jobs/test_idle.py": ("test_what_is_not_told_and_a_busy_processor_keep_a_job",),
        },
    ),
    38: (
        "one lost card makes the whole page fail",
        {
            "agent/test_nvml_cards.py": ("test_one_lost_of_eight_leaves_seven_whole",),
            "nodes/test_pages.py": ("test_one_lost_card_of_four_leaves_the_pages_whole",),
        },
    ),
    39: (
        "a card falls off the bus and no XID is written",
        {
            "agent/test_kernel_log.py": ("test_a_card_that_fell_off_without_a_number_is_xid_79",),
            "jobs/test_faults.py": ("test_a_card_that_has_fallen_off_the_bus_without_a_number_is_isolated",),
        },
    ),
    41: (
        "indexes shift when a card drops out",
        {
            "nodes/test_inventory.py": ("test_a_vanished_card_is_missing_and_the_others_keep_their_rows",),
            "agent/test_nvml.py": ("test_a_card_that_vanishes_takes_no_other_cards_name",),
        },
    ),
    43: (
        "unhealthy for ever after something passing",
        {"jobs/test_faults.py": ("test_a_79_once_and_a_passed_self_test_bring_the_card_back_and_its_job_never_notices",)},
    ),
    45: ("CUDA counts in another order", {"agent/test_runner.py": ("test_cuda_counts_in_the_order_of_the_bus",)}),
    47: (
        "a driver that never answers",
        {
            "agent/test_nvml_probe.py": (
                "test_a_hang_of_ten_minutes_blocks_nothing_and_ends_when_the_driver_comes_back",
                "test_a_child_that_cannot_be_killed_is_left_alone",
            ),
            "agent/test_runner.py": ("test_a_driver_stuck_for_ten_minutes_in_one_call_leaves_every_heartbeat_on_time",),
            "agent/test_agent_hang.py": ("test_ten_minutes_in_one_call_of_the_driver_leave_every_heartbeat_on_time",),
        },
    ),
    48: (
        "an upgrade under a running agent",
        {
            "agent/test_nvml_cards.py": ("test_an_upgrade_under_a_running_agent_is_seen_though_everything_still_works",),
            "agent/test_nvml_probe.py": ("test_after_an_upgrade_of_the_driver_the_new_library_is_loaded_by_the_same_child",),
            "nodes/test_hardware_facts.py": ("test_it_takes_no_new_work_and_is_back_by_itself_when_it_fits",),
        },
    ),
    50: (
        "alarms about clocks that are only resting",
        {
            "nodes/test_health.py": (
                "test_three_samples_of_thermal_throttling_under_load_are_told_once_and_their_end_too",
                "test_an_idle_card_with_low_clocks_is_never_a_fault",
            ),
            "nodes/test_trends.py": ("test_a_card_that_slows_down_for_heat_is_told_once_scored_lower_and_recovers",),
        },
    ),
    51: (
        "no card at the start ends the agent",
        {
            "agent/test_nvml.py": ("test_no_cards_at_the_start_is_no_error_and_later_ones_are_picked_up",),
            "nodes/test_inventory.py": ("test_a_node_without_cards_picks_up_two_later",),
        },
    ),
    60: (
        "a page looks whose it is, and the address beside it does not",
        {
            "test_access.py": (
                "test_each_caller_of_the_api_gets_what_the_table_says",
                "test_each_visitor_of_a_page_gets_what_the_table_says",
                "test_each_caller_of_a_socket_gets_the_groups_that_the_table_says",
                "test_a_view_without_a_row_opens_to_nobody",
            ),
            "test_routes.py": ("test_lists_show_a_stranger_nothing_of_the_owner",),
        },
    ),
    61: (
        "one node's credential writes another job's log",
        {"test_access.py": ("test_only_a_node_writes_and_only_to_what_is_its_own",)},
    ),
    62: (
        "a quote in a job's name breaks all nodes",
        {
            "e2e/test_names.py": ("test_no_name_does_anything",),
            "jobs/test_api_submit.py": ("test_a_name_is_stored_as_it_is", "test_bad_input_is_a_400_that_names_the_field"),
            "agent/test_shim_run.py": ("test_it_passes_words_and_variables_as_they_are",),
        },
    ),
    63: (
        "tokens in logs, messages and addresses",
        {
            "test_access.py": ("test_a_token_in_an_address_opens_nothing_and_no_credential_is_logged",),
            "e2e/test_secrets.py": ("test_a_canary_is_found_nowhere_but_in_the_job",),
        },
    ),
    64: (
        "throttles that fifty at once slip through, and that a header fools",
        {
            "quotas/test_throttles.py": ("test_of_fifty_at_once_five_pass", "test_who_calls"),
            "quotas/test_api.py": ("test_the_sixth_anonymous_call_in_a_minute_is_a_429",),
        },
    ),
    65: (
        "nobody knows when a limit starts anew, and where",
        {
            "jobs/test_accounting.py": ("test_a_job_from_2330_to_0030_over_the_months_end_is_split_by_local_month",),
            "jobs/test_usage_pages.py": ("test_the_limits_say_when_and_where_the_month_ends",),
            "jobs/test_quota_pages.py": ("test_the_page_says_what_is_used_and_when_it_starts_anew_in_the_zone_that_decides",),
        },
    ),
    68: (
        "who works without a card is ended as idle",
        {"jobs/test_idle.py": ("test_anything_else_is_not", "test_what_is_not_told_and_a_busy_processor_keep_a_job")},
    ),
    69: (
        "idleness is judged before its time, or by another rule",
        {
            "jobs/test_idle.py": (
                "test_anything_else_is_not",
                "test_the_shortest_window_holds_whoever_set_it",
                "test_a_jobs_own_window_holds_where_nobody_else_set_one",
                "test_a_second_lap_begins_its_window_anew",
            )
        },
    ),
    70: (
        "jobs of somebody who left run on for months",
        {
            "jobs/test_ownerless.py": (
                "test_the_running_job_of_one_who_was_switched_off_goes_on_until_its_lease_ends",
                "test_a_job_that_runs_for_weeks_asks_its_owner_too",
            )
        },
    ),
}

#: Faults found on the running product.
FAULTS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "F32": (
        "a plain job lands on an integrated card, or on one that a stranger keeps busy",
        {"scheduler/test_last_choice.py": ("test_a_plain_job_takes_the_card_that_is_free_of_all_that",)},
    ),
    "F1": (
        "a job runs as root, and nothing says so",
        {
            "e2e/test_identity.py": ("test_a_job_runs_as_its_owners_account_never_as_root_and_nobody_without_one_is_placed",),
            "jobs/test_admission.py": (
                "test_without_a_unix_account_a_job_is_refused_before_it_is_placed_and_told_the_way_out",
                "test_with_one_the_job_runs_as_it_there_and_as_nobody_by_name_elsewhere",
            ),
            "agent/test_jobdir.py": ("test_root_without_an_account_for_the_job_launches_nothing",),
            "agent/test_isolation.py": ("test_where_no_job_can_be_launched_the_reason_is_told_and_nobody_counts_as_isolated",),
            "agent/test_doctor.py": ("test_it_fails_while_a_job_could_run_as_root",),
        },
    ),
    "F2": (
        "any job reads the keys, the database and the agent's credential",
        {
            "attack/test_plain_account.py": (
                "test_a_job_reaches_exactly_what_its_node_reports",
                "test_where_people_are_isolated_the_grave_attacks_are_all_closed",
                "test_a_program_that_can_not_be_closed_in_is_not_started",
                "test_a_folder_that_appears_under_a_hidden_parent_stays_hidden",
            ),
            "attack/test_shared_account.py": ("test_a_job_reaches_exactly_what_its_node_reports",),
            "agent/test_jobdir.py": (
                "test_it_lies_beside_the_agents_data_and_is_the_jobs_alone",
                "test_links_in_the_place_of_the_folder_or_the_one_above_lead_nowhere",
                "test_a_folder_of_another_persons_in_its_place_is_not_read",
            ),
            "e2e/test_closed.py": ("test_a_persons_job_opens_nothing_of_the_installation",),
            "attack/test_root_layouts.py": (
                "test_a_job_is_nobody_of_the_house_and_reaches_nothing_of_it",
                "test_another_jobs_folder_and_memory_are_closed",
                "test_each_process_is_who_it_should_be",
                "test_it_says_what_is_isolated",
            ),
            "test_redis.py": (
                "test_who_has_no_password_gets_nothing",
                "test_the_password_is_on_no_command_line",
            ),
            "test_rooted.py": (
                "test_an_older_folder_is_handed_over_once_without_following_links",
                "test_root_writes_what_it_knows_and_decides_who_jobs_run_as",
                "test_only_code_is_placed",
            ),
        },
    ),
    "F3": (
        "who reads an agent's credential speaks as its node and is given others' secrets",
        {
            "attack/test_node_attacks.py": (
                "test_with_a_stolen_credential_a_job_is_handed_nobodys_secrets",
                "test_a_credential_that_was_stolen_outlives_its_job_and_still_opens_nothing",
            ),
            "jobs/test_admission.py": ("test_secrets_go_only_to_nodes_that_keep_people_apart",),
            "nodes/test_credentials.py": ("test_both_are_good_until_the_new_one_was_used_and_the_old_one_is_theft_afterwards",),
        },
    ),
    "F4": (
        "a copied agent makes a second attempt, or ends the first",
        {
            "attack/test_node_attacks.py": (
                "test_a_copied_agent_never_makes_a_second_attempt_nor_ends_the_first",
                "test_a_restart_of_the_true_agent_is_taken_at_once_and_keeps_its_job",
            ),
            "nodes/test_sessions.py": ("test_who_is_taken",),
            "e2e/test_identity.py": ("test_a_copied_agent_is_refused_and_told_of_and_the_true_one_never_notices",),
        },
    ),
    "F5": (
        "agents of two control planes on one machine kill each other's jobs",
        {
            "agent/test_installation.py": (
                "test_the_same_node_number_of_two_control_planes_on_one_machine_does_not_meet",
                "test_a_group_that_is_there_already_is_somebody_elses_and_nothing_in_it_is_killed",
                "test_what_an_older_agent_started_under_its_old_name_is_adopted_until_it_ends",
            ),
            "nodes/test_enrol.py": ("test_every_machine_is_told_this_control_planes_own_name",),
        },
    ),
    "F6": (
        "a node claims what can't be, and writes to jobs that are over",
        {
            "attack/test_node_attacks.py": (
                "test_a_node_claims_no_memory_and_no_cards_that_can_not_be",
                "test_a_node_adds_nothing_to_a_job_that_is_over",
            ),
            "agent/test_protocol.py": ("test_lists_that_no_machine_has_are_cut_and_a_complete_list_is_refused",),
        },
    ),
    "F7": (
        "one event that can't be read keeps a node out for ever",
        {
            "agent/test_protocol.py": (
                "test_a_bad_event_stands_under_its_number_and_the_others_are_read",
                "test_no_event_refuses_a_sync",
                "test_of_many_events_the_one_that_is_not_understood_is_found_and_given_up",
            ),
            "nodes/test_sync.py": (
                "test_an_event_that_can_not_be_is_acknowledged_counted_and_dropped_alone",
                "test_a_row_of_before_without_a_number_spoils_no_later_xid",
            ),
            "jobs/test_agent_api.py": ("test_an_event_that_can_not_be_read_keeps_no_node_out",),
        },
    ),
    "F8": (
        "the installer runs a file that another user could swap after the check",
        {
            "test_install.py": (
                "test_the_line_runs_the_very_bytes_that_it_has_checked",
                "test_a_folder_full_of_traps_is_no_place_that_programs_are_found_in",
                "test_folders_that_others_may_replace_are_refused",
            ),
        },
    ),
    "F9": (
        "webhooks to special networks and any port, and refusals that tell what a name resolves to",
        {
            "quotas/test_webhooks.py": (
                "test_addresses_that_are_not_public_are_refused",
                "test_public_addresses_are_reached_at_the_ports_of_https_only",
                "test_nobody_listens_is_a_failure_that_may_pass",
            ),
            "quotas/test_channels.py": ("test_a_name_that_can_not_be_resolved_and_one_inside_are_refused_alike",),
        },
    ),
    "F10": (
        "passwords are guessed from many addresses, and strangers lock people out",
        {
            "attack/test_edges.py": (
                "test_sixty_wrong_passwords_from_twelve_addresses_at_two_doors_meet_one_count",
                "test_an_account_that_does_not_exist_is_counted_the_same",
                "test_a_stranger_locks_nobody_out",
                "test_a_known_device_is_no_licence_to_guess",
                "test_asking_for_the_password_again_counts_too",
            ),
        },
    ),
    "F11": (
        "metrics for everybody, answers without headers, text that is not seen, days at the edge of the calendar",
        {
            "jobs/test_metrics.py": (
                "test_only_whom_the_settings_name",
                "test_names_of_people_and_projects_are_for_the_token_alone",
            ),
            "attack/test_edges.py": (
                "test_every_answer_has_the_headers_that_keep_a_browser_from_harm",
                "test_text_that_is_not_seen_is_refused_by_every_door_of_the_api",
                "test_text_that_is_not_seen_is_refused_by_every_form",
                "test_no_day_at_the_edge_of_the_calendar_breaks_a_page",
                "test_a_time_that_no_zone_can_tell_is_refused_where_it_would_be_kept",
            ),
        },
    ),
    "F12": (
        "a link by mail whose form no browser can send",
        {
            "browser/test_links.py": (
                "test_a_quota_request_is_decided_by_the_link_alone",
                "test_a_forgotten_password_is_set_anew_and_signs_in",
                "test_an_invitation_leads_to_a_first_password",
                "test_every_other_link_leads_through_the_sign_in_to_its_page",
                "test_what_is_mailed_is_switched_off_where_each_mail_says",
            ),
            "quotas/test_invitations.py": (
                "test_a_forgotten_password_is_set_anew_by_the_link_once",
                "test_who_has_no_account_is_told_the_same_and_is_sent_nothing",
            ),
        },
    ),
    "F13": (
        "one person's work stops everybody's",
        {
            "attack/test_edges.py": (
                "test_slow_pages_leave_agents_and_the_health_check_alone",
                "test_slow_output_of_jobs_leaves_the_reports_of_agents_alone",
                "test_a_queue_without_an_end_is_refused_with_a_time_to_come_again",
                "test_a_database_that_is_busy_for_too_long_asks_to_come_again",
                "test_a_chunk_that_is_sent_twice_at_once_is_told_to_come_again",
            ),
            "test_lanes.py": ("test_addresses_take_turns_however_much_one_of_them_asks",),
            "jobs/test_logs.py": ("test_who_repeats_a_chunk_that_is_being_written_is_told_so_and_waits_for_nothing",),
            "agent/test_logs.py": ("test_a_rank_whose_chunk_is_still_at_work_waits_for_as_long_as_it_is_told_and_the_others_do_not",),
            "attack/test_budgets.py": ("test_others_go_on_while_one_person_asks_for_all_that_is_dear",),
            "quotas/test_masking.py": (
                "test_twelve_secrets_of_one_letter_and_a_job_that_prints_it_leave_nothing_unmasked",
                "test_the_comparisons_do_not_grow_with_the_number_of_values",
                "test_the_comparisons_grow_with_the_text_alone_however_it_repeats_a_value",
                "test_a_chunk_that_is_too_much_work_is_taken_in_parts_and_none_is_shown_unmasked",
            ),
            "quotas/test_secrets.py": ("test_more_secrets_than_can_be_masked_are_refused_at_submit_with_the_numbers",),
        },
    ),
    "F14": (
        "headers, bodies, frames and connections without limits",
        {
            "attack/test_edges.py": (
                "test_hundreds_of_half_sent_requests_cost_little_and_are_closed_in_time",
                "test_a_header_of_80_mib_is_refused_at_its_beginning",
            ),
            "test_edge.py": (
                "test_what_is_too_much_is_refused_with_the_servers_own_words_and_all_headers",
                "test_half_sent_headers_and_bodies_and_quiet_connections_are_closed",
                "test_who_reads_no_answer_is_closed",
                "test_whoever_opens_many_connections_takes_seats_from_himself",
                "test_a_frame_is_judged_by_its_announced_length",
            ),
            "test_handler.py": (
                "test_a_large_body_is_taken_from_who_is_known_only",
                "test_there_is_room_for_so_much_at_a_time_and_no_sender_gets_more_than_half",
            ),
        },
    ),
    "F15": (
        "a page searches an output anew at each view, by patterns that a job can make slow",
        {
            "jobs/test_known_errors.py": (
                "test_each_character_is_searched_once_for_each_word_however_the_text_repeats_itself",
                "test_the_output_is_searched_once_when_the_job_ends_and_at_no_view",
                "test_a_job_that_ended_before_is_looked_at_by_the_first_view_alone",
            ),
        },
    ),
    "F16": (
        "bytes and rows of one person have no end",
        {
            "attack/test_budgets.py": ("test_others_go_on_while_one_person_asks_for_all_that_is_dear",),
            "jobs/test_files.py": (
                "test_files_are_counted_by_what_was_uploaded_also_when_one_comes_again",
                "test_a_file_beyond_the_jobs_limit_is_not_taken_smaller_ones_are_and_the_job_is_told",
                "test_a_persons_limit_counts_the_files_and_output_of_all_jobs",
                "test_a_projects_limit_holds_for_all_its_members",
                "test_output_of_who_is_over_the_limit_is_cut_but_for_its_first_mebibyte",
                "test_below_the_floor_of_the_disk_neither_files_nor_output_are_taken_and_the_disk_is_named",
                "test_files_of_jobs_that_ended_long_ago_are_removed_and_the_page_says_so",
            ),
            "jobs/test_api_submit.py": (
                "test_the_text_of_active_jobs_has_a_limit_that_an_end_gives_back",
                "test_a_new_user_has_a_limit_of_active_jobs",
                "test_on_a_full_disk_a_submit_is_refused_and_the_disk_is_named",
            ),
            "jobs/test_api_jobs.py": ("test_lists_read_and_show_neither_command_nor_environment",),
            "test_writes.py": (
                "test_the_sixth_write_is_a_429_that_says_when_and_others_are_not_held_up",
                "test_values_that_were_replaced_are_kept_up_to_a_number",
            ),
        },
    ),
    "F17": (
        "limits that hold on the control plane only",
        {
            "agent/test_limits.py": (
                "test_the_memory_that_a_job_asked_for_is_all_that_it_gets",
                "test_a_job_that_asked_for_no_memory_gets_the_nodes_default_share",
                "test_a_fork_bomb_meets_the_nodes_limit",
                "test_only_the_files_of_its_own_cards_can_be_opened",
                "test_without_cgroups_it_says_that_nothing_holds_and_a_fork_bomb_meets_the_limit_of_its_account",
            ),
            "jobs/test_spine_db.py": ("test_a_node_is_told_what_the_job_asked_for_of_the_host",),
            "agent/test_outfile.py": ("test_forty_times_the_cap_leave_the_cap_and_the_end_on_the_disk",),
            "agent/test_logs.py": ("test_of_a_capped_log_only_the_end_is_sent_and_only_when_the_rank_is_over",),
            "jobs/test_logs.py": ("test_the_last_lines_arrive_whatever_the_cap_behind_one_line_that_says_what_is_missing",),
            "jobs/test_agent_api.py": ("test_a_capped_log_gets_its_end_before_the_job_has_ended",),
        },
    ),
    "F18": (
        "jobs are as protected from the OOM killer as the agent",
        {
            "agent/test_shim_run.py": (
                "test_a_job_has_none_of_its_services_protection_from_the_oom_killer_and_its_shim_keeps_it",
                "test_a_job_is_never_protected_and_its_shim_always",
            ),
        },
    ),
    "F19": (
        "a full disk ends the agent, and jobs fail on it again and again",
        {
            "jobs/test_launches.py": (
                "test_it_goes_to_another_node_after_a_pause",
                "test_the_pauses_grow",
                "test_a_node_that_spoils_three_launches_in_a_row_is_taken_out_of_service",
            ),
            "nodes/test_alerts.py": ("test_a_node_that_was_taken_out_of_service_by_itself_is_an_alert_until_it_is_back",),
            "agent/test_full_disk.py": (
                "test_a_full_disk_is_said_starts_nothing_and_hides_no_end",
                "test_on_a_disk_that_is_really_full",
                "test_what_must_be_durable_is_refused_and_everything_else_is_written_later",
                "test_a_damaged_store_is_told_from_one_that_only_can_not_be_opened",
            ),
            "agent/test_runner_process.py": (
                "test_with_a_damaged_store_what_runs_is_adopted_and_what_ended_is_told",
                "test_a_store_that_can_not_be_used_is_one_sentence",
            ),
        },
    ),
    "F20": (
        "a full disk makes the supervisor lose track of what it started",
        {
            "test_supervisor.py": (
                "test_what_it_started_it_knows_though_there_is_no_room_to_say_so",
                "test_a_process_that_can_not_be_watched_is_ended",
            ),
        },
    ),
    "F21": (
        "the control plane's disk is full, and neither the health check nor a refusal says so",
        {
            "test_disk_state.py": (
                "test_the_health_check_fails_and_names_the_full_disk_but_not_its_path",
                "test_a_write_that_a_full_disk_refuses_is_answered_with_the_disk",
                "test_a_disk_of_a_few_kib_is_full_and_well_again",
                "test_the_alert_names_the_disk_with_its_numbers",
            ),
        },
    ),
    "F22": (
        "a driver that lacks the newest version of one call shows no cards at all",
        {
            "agent/test_nvml.py": (
                "test_an_older_driver_lists_processes_as_it_can_and_hides_no_card",
                "test_a_system_that_lists_no_processes_says_none",
            ),
        },
    ),
    "F23": (
        'a driver\'s "unknown" becomes a figure',
        {
            "agent/test_backends.py": (
                "test_what_drivers_say_for_unknown_is_a_value_of_no_field_and_is_counted",
                "test_a_bus_id_sorts_by_number",
            ),
        },
    ),
    "F24": (
        "the parts of a job are told an address that no other node can call, or a port that is taken",
        {
            "agent/test_addresses.py": (
                "test_an_agent_tells_an_address_that_other_nodes_reach",
                "test_a_port_that_a_stranger_listens_on_starts_the_job_anew_instead_of_failing_it",
            ),
            "jobs/test_admission.py": ("test_a_job_on_two_nodes_goes_where_they_can_call_each_other_and_is_refused_where_none_can",),
        },
    ),
    "F25": (
        "a node's clock that is wrong lets a faulty job run on",
        {
            "jobs/test_faults.py": (
                "test_a_31_stops_its_job_whatever_the_nodes_clock_says",
                "test_a_31_of_an_earlier_attempt_stops_no_later_one",
            ),
            "nodes/test_sync.py": (
                "test_when_an_event_was_is_counted_by_one_clock",
                "test_a_clock_that_is_wrong_is_told",
            ),
            "nodes/test_alerts.py": ("test_a_clock_that_is_wrong_and_a_node_that_is_doubted_are_alerts",),
        },
    ),
    "F26": (
        "a start overwrites the profile of another installation",
        {
            "test_start.py": (
                "test_a_profile_of_another_installation_is_left_alone_and_that_is_said",
                "test_a_profile_that_is_not_there_yet_or_our_own_is_written_where_it_is_wanted",
            ),
        },
    ),
    "F27": (
        "bytes, names and pipes that end a command badly",
        {
            "client/test_ctl_words.py": (
                "test_a_word_that_is_no_text_is_named",
                "test_a_folder_whose_name_is_no_text_is_named",
                "test_the_sdk_names_the_field_that_is_no_text",
            ),
            "nodes/test_enrol.py": (
                "test_an_admin_may_name_a_machine_with_dots",
                "test_a_name_that_no_node_can_have_is_refused_in_one_sentence",
            ),
            "test_install.py": (
                "test_without_home_it_takes_the_accounts_folder",
                "test_without_any_home_it_says_what_to_give",
            ),
            "test_closed_pipes.py": (
                "test_nebula_ctl",
                "test_nebula_agent",
                "test_manage_py",
            ),
            "quotas/test_notify.py": ("test_an_answer_of_200_may_still_say_no",),
        },
    ),
    "F28": (
        "what is written while a node is cut off is dropped",
        {
            "agent/test_runner.py": ("test_output_of_a_rank_that_was_given_up_arrives_before_it_is_removed",),
            "agent/test_sessions.py": ("test_being_cut_off_is_said_as_it_goes_on_less_and_less_often",),
            "e2e/test_partition.py": ("test_a_job_that_was_cut_off_for_longer_than_its_lease_goes_on_elsewhere_and_its_output_is_kept",),
            "jobs/test_agent_api.py": ("test_late_output_of_a_lost_rank_is_kept",),
            "jobs/test_logs.py": ("test_late_output_goes_on_behind_the_line_that_closed_the_log",),
        },
    ),
    "F29": (
        "output asked for in the moment of placement is a 404",
        {
            "jobs/test_api_output.py": (
                "test_output_asked_for_in_the_moment_of_placement_is_empty_and_no_error",
                "test_what_may_still_come_is_empty_and_what_can_not_is_a_404",
            ),
        },
    ),
    "F30": (
        "a charge runs on until the system hears of the end",
        {
            "jobs/test_charge_ends.py": (
                "test_a_node_that_was_off_and_rebooted_costs_what_was_seen_to_run",
                "test_what_staff_write_off_costs_what_was_seen_to_run",
                "test_a_lease_that_ran_out_costs_what_was_seen_to_run",
                "test_what_ended_after_the_backup_costs_until_the_backup_whatever_redis_has_heard_since",
                "test_agent_and_shim_killed_together_cost_until_the_last_sync_of_the_agent_before",
                "test_the_checks_find_a_charge_that_goes_on_until_the_end_was_heard_of",
                "test_live_use_and_fair_share_count_until_the_last_sync_too",
            ),
            "agent/test_runner.py": ("test_a_program_that_is_over_is_told_as_such_while_its_report_waits_for_its_last_output",),
            "agent/test_zygote.py": ("test_the_exit_code_is_kept_even_if_the_program_ends_before_a_new_shim_comes",),
        },
    ),
    "F31": (
        "cards drain for a job and are given back to those they drained of, again and again",
        {
            "scheduler/test_places.py": (
                "test_a_job_of_all_cards_starts_after_at_most_twelve_small_ones_of_another_owner",
                "test_a_place_that_was_lost_to_those_whose_cards_drained_is_not_lost_again",
                "test_no_decision_of_one_pass_is_undone_by_the_next_without_an_event",
            ),
        },
    ),
    "F33": (
        "a card that was replaced is missing for ever, and the new one gets work untested",
        {
            "nodes/test_inventory.py": (
                "test_a_card_that_was_replaced_is_retired_and_the_new_one_waits_for_its_test",
                "test_a_card_that_still_holds_something_is_not_retired_yet",
            ),
        },
    ),
    "F34": (
        "faults that NVIDIA has an action for are only noted, and memory that fails keeps getting work",
        {
            "nodes/test_health.py": (
                "test_what_one_xid_means_for_a_healthy_card",
                "test_what_a_cards_memory_means_by_policy",
            ),
            "nodes/test_trends.py": ("test_memory_errors_take_a_card_out_once_and_used_up_spare_rows_for_good",),
            "jobs/test_faults.py": (
                "test_a_94_stops_its_program_to_run_again_and_the_card_is_reset_when_it_is_idle",
                "test_a_fault_that_wants_a_reset_keeps_new_work_away_until_then",
            ),
        },
    ),
    "F35": (
        "tests depend on the day, the zone and the caller's signals; messages are translated at import",
        {
            "test_locale.py": ("test_nothing_is_translated_at_import",),
        },
    ),
    "F36": (
        "a link into the submit form fills in nothing",
        {
            "jobs/test_submit_links.py": (
                "test_templates_name_only_what_the_form_takes",
                "test_a_size_on_the_overview_opens_the_form_with_that_memory",
            ),
        },
    ),
    "F37": (
        "the form that asks for more begins with useless values and hides its rules",
        {
            "jobs/test_quota_asking.py": (
                "test_a_request_that_names_no_day_lasts_for_a_week_at_least",
                "test_the_form_begins_with_what_holds_a_job_back",
                "test_six_chinese_characters_are_reason_enough",
                "test_the_least_length_of_the_reason_is_said_beforehand",
                "test_a_wrong_amount_is_quoted_as_it_was_typed",
            ),
        },
    ),
    "F38": (
        "curves open with a range that is mostly empty",
        {
            "jobs/test_curves.py": (
                "test_curves_open_with_the_range_that_has_figures",
                "test_the_axis_does_not_begin_long_before_the_first_figure",
                "test_a_jobs_curves_show_its_run_and_nothing_before_it",
            ),
        },
    ),
    "F39": (
        "who uses a card is nowhere to be seen",
        {
            "jobs/test_holders.py": (
                "test_the_api_names_who_holds_a_slice",
                "test_the_pages_name_who_uses_a_card",
                "test_a_list_of_jobs_tells_the_node",
            ),
            "client/test_ctl_words.py": (
                "test_the_list_of_cards_says_who_uses_them",
                "test_the_list_of_jobs_has_a_column_for_the_node",
            ),
        },
    ),
    "F40": (
        "memory nearly full is an alert for jobs that own their card",
        {
            "nodes/test_alerts.py": ("test_a_card_that_a_job_has_to_itself_may_be_full",),
        },
    ),
    "F41": (
        "pages that mislead, leave one alone, or say one thing in two ways",
        {
            "test_docs_pages.py": (
                "test_every_page_of_the_documentation_is_served_and_every_link_leads_somewhere",
                "test_one_search_finds_jobs_nodes_cards_projects_and_documentation",
                "test_a_page_that_is_not_there_looks_like_the_others_and_leads_out",
                "test_on_a_telephone_the_preview_stands_before_submit",
            ),
            "jobs/test_page_words.py": (
                "test_a_reset_is_told_in_the_zone_that_decides_whoever_reads",
                "test_a_time_keeps_its_seconds_after_midnight",
                "test_one_name_is_not_for_two_things",
                "test_the_list_of_jobs_promises_what_it_shows",
            ),
            "jobs/test_timeline.py": (
                "test_a_plan_that_the_axis_cuts_says_that_it_goes_on",
                "test_an_attempt_is_as_long_in_its_bar_as_in_the_facts",
            ),
            "jobs/test_quota_asking.py": ("test_deciding_without_a_tick_decides_nothing_and_says_so",),
        },
    ),
    "F42": (
        "a failed program's page says exit code 1 and nothing of why",
        {
            "jobs/test_last_lines.py": (
                "test_the_line_that_says_why",
                "test_the_page_of_a_failed_job_says_why_and_offers_to_run_it_again",
                "test_no_text_makes_it_slow_or_long",
            ),
        },
    ),
    "F43": (
        "the command line says things that disagree or can't be read",
        {
            "client/test_ctl_words.py": (
                "test_a_flag_is_not_shown_as_if_it_took_a_value",
                "test_a_group_alone_shows_what_there_is",
                "test_cards_that_count_as_maintenance_are_named_with_their_reason",
                "test_advice_is_told_in_words",
                "test_the_sdk_has_a_name_of_its_own",
            ),
        },
    ),
    "F44": (
        "Chinese pages with English and western signs in them",
        {
            "test_locale.py": (
                "test_a_sentence_ends_with_a_chinese_stop",
                "test_no_chinese_word_has_a_western_stop_whoever_wrote_it",
                "test_the_administration_speaks_chinese_in_the_plural_too",
            ),
            "test_pages.py": ("test_who_reads_chinese_is_greeted_in_chinese_after_signing_in_from_an_english_browser",),
        },
    ),
    "F46": (
        "what was promised is missing",
        {
            "jobs/test_shares.py": (
                "test_half_of_a_named_model_is_stored_as_mib",
                "test_in_a_pool_of_several_sizes_a_model_must_be_named",
            ),
            "jobs/test_holders.py": (
                "test_the_api_names_who_holds_a_slice",
                "test_nvlink_is_told_of_both_ends_and_of_no_other",
            ),
            "test_old_addresses.py": (
                "test_each_is_moved_with_its_method",
                "test_a_submit_arrives_with_its_body_and_its_token",
            ),
            "agent/test_jsonlog.py": (
                "test_an_agents_log_is_json_where_it_says_so",
                "test_the_control_planes_processes_write_json_where_the_setting_says_so",
            ),
            "jobs/test_refused.py": (
                "test_every_way_of_submitting_leaves_its_row",
                "test_no_person_fills_the_table",
            ),
        },
    ),
}


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("number", sorted(KNOWN), ids=lambda number: f"{number}-{KNOWN[number][0].replace(' ', '_')}")
def test_each_known_failure_has_its_tests(number: int) -> None:
    _what, tests = KNOWN[number]
    missing = {f"{path}::{name}" for path, names in tests.items() for name in names if name not in names_in(path)}
    assert missing == set()


@pytest.mark.parametrize("number", FAULTS)
def test_each_fault_has_its_tests(number: str) -> None:
    _what, tests = FAULTS[number]
    missing = {f"{path}::{name}" for path, names in tests.items() for name in names if name not in names_in(path)}
    assert missing == set()
