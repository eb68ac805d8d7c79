"""What each metric means: the help text in /metrics, and the list in docs/operations.md.

A `*` stands for a part made at run time; what it can be is said. A test holds every name in the source
against this table.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

MEANINGS: Mapping[str, str] = {
    # --- requests, at the router
    "requests_total": "Requests accepted and placed",
    "requests_refused": "Requests refused at the door because too much was waiting",
    "requests_refused_total": "Requests refused because no placement was possible",
    "requests_waited_total": "Requests that had to wait for room",
    "requests_finished_total": "Requests that ended by stop or length",
    "requests_cancelled_total": "Requests whose client left",
    "requests_broken_total": "Accepted requests that ended with an error",
    "requests_broken_*_total": "The same by the error's code",
    "requests_oldest_wait_seconds": "How long the request that waits longest for room has been waiting",
    "requests_live": "Requests between acceptance and their last release",
    "requests_waiting": "Requests that wait for room now",
    "requests_*": "Live requests by phase",
    "streams_live": "Answers being delivered to clients",
    "tokens_*_total": "Tokens accepted into logs, by the role that made them",
    "pipeline_*_total": "Requests by the pipeline they were placed on",
    "cuts_*_total": "Changes of owner, by mode (one_shot, catch_up) or by what made them necessary",
    "singular_outgrown_total": "Singular requests whose answer outgrew its prediction: main decode took them",
    # --- repair, at the router
    "admit_timeouts_total": "Workers that did not answer an Admit in time",
    "readmitted_total": "Admits sent again for a request that a worker knew already",
    "resumes_total": "Gaps in a log for which its owner was asked to repeat",
    "relay_firsts_missed_total": "Relays started by the router because P's first token did not reach them",
    "silent_replaced_total": "Silent workers that were replaced in a request",
    "owner_stalls_total": "Owners taken as lost because their engine made no steps",
    "legs_lost_*_total": "Parts of requests lost with their worker, by role",
    "missing_total": "Senders that no longer had the blocks they were asked for",
    "workers": "Workers with a session now",
    "workers_lost_total": "Sessions with workers that ended",
    "rewarmed_total": "Recent sessions whose KV a cold main decode holds again",
    "rewarm_skipped_total": "Recent sessions that no prefill worker could give a cold main decode",
    "rewarm_dropped_total": "Re-warmings that were given up",
    "attach_unknown_total": "Attaches for blocks whose hashes are not known here",
    "eager_tokens_total": "Ids that this relay has drawn",
    "stale_rows_total": "Runs of tokens from owners that had been replaced",
    "strays_total": "Messages about requests that are over or unknown",
    # --- the index, at the router
    "index_blocks": "Cached blocks known of all workers",
    "index_expected_blocks": "Blocks expected from own placements that have not landed",
    "index_gaps": "Gaps in a worker's KV events, each mended by a snapshot",
    "kv_bytes_asked_total": "Bytes of KV that senders were asked to send to main decodes",
    "kv_bytes_saved_total": "Bytes of KV that did not have to be sent because main decode had them",
    # --- work, at the workers
    "admitted_total": "Requests admitted by a decoder",
    "refused_*_total": "Requests refused by a worker, by reason",
    "prefills_total": "Prefills accepted",
    "prefills_refused_total": "Prefills refused",
    "prompt_tokens_total": "Known tokens of requests taken in here, cached or not",
    "prompt_tokens_cached_total": "Those of them whose KV was here already: over the former, the hit rate",
    "prefill_wasted_tokens_total": "Tokens computed for prefills that were given up before their first token",
    "tokens_total": "Tokens drawn by this decoder",
    "ownerships_total": "Times this decoder became the owner of a request",
    "local_extends_total": "Times it computed the missing rest itself rather than wait for a transfer",
    "failed_*_total": "Requests given up, by reason",
    "starved_total": "Sequences whose growth found no free block",
    "running": "Sequences that compute now",
    "queued": "Sequences and prefills that wait",
    "queued_tokens": "New tokens that wait to be computed",
    "steps_total": "Steps of the engine",
    "engine_launched_steps_total": "Steps on a GPU that no recorded graph served, since it was ready",
    "engine_replayed_steps_total": "Steps on a GPU that were replayed from a recorded graph",
    "engine_late_compilations_total": "Kernels compiled on a GPU after it was ready: a stall each",
    "decode_step_ms": "Milliseconds of recent decode steps (median)",
    "prefill_tokens_per_second": "Measured rate of prefill",
    "tasks": "Tasks of the event loop; at rest their number does not change",
    "pool_blocks": "KV blocks of the pool",
    "pool_free": "Blocks that hold nothing",
    "pool_cached": "Blocks that are kept for later requests and may be evicted",
    # --- what is held now; all are 0 when nothing goes on
    "held_prefills": "Prefills at this worker",
    "held_requests": "Requests at this decoder",
    "held_tickets": "Transfers expected or being received",
    "held_buffers": "Blocks with a chunk being received into them",
    "held_transfers": "Transfers being sent",
    "held_chunks": "Chunks handed to sockets and not yet done with",
    "held_alignments": "Alignments, in and out",
    "held_send_pins": "Blocks pinned for sending",
    "held_pins": "Blocks pinned for any reason",
    "held_promises": "Blocks promised and not yet taken",
    # --- KV in and out, at the workers
    "kv_bytes_in_total": "Bytes of KV received and verified",
    "kv_bytes_in_alignment_total": "The part of them that belonged to alignments",
    "kv_bytes_drained_total": "Bytes of KV received for which there was no use any more",
    "kv_bytes_out_total": "Bytes of KV sent",
    "kv_bytes_out_*_total": "The same by class (uncovered, covered, alignment, parked)",
    "chunks_damaged_total": "Chunks whose checksum was wrong; they are sent again",
    "chunks_gone_total": "Chunks of tickets that are over",
    "transfers_in_total": "Tickets opened",
    "transfers_in_done_total": "Tickets whose blocks all landed",
    "transfers_out_total": "Transfers begun",
    "transfers_out_done_total": "Transfers that their receiver called complete",
    "transfers_out_gone_total": "Transfers that their receiver wanted no more",
    "transfers_out_missing_total": "Transfers that ended because blocks had been evicted",
    "transfers_out_stalled_total": "Transfers given up because nothing was acknowledged",
    "alignments_total": "Transfers that went on after their request had ended",
    "alignments_done_total": "Alignments that were completed",
    "alignments_dropped_total": "Alignments that were dropped for their blocks, their size or their age",
    # --- messages that had no use
    "attach_stale_total": "Attaches that named a receiver's earlier life",
    "attach_chain_mismatch_total": "Attaches whose last block is not the sender's: nothing was sent",
    "feeds_stray_total": "Feeds about requests that are not here",
    "firsts_stray_total": "First tokens that came without their request, or twice",
    "old_term_total": "Messages of older terms",
    "divergence_total": "Runs of tokens that contradicted the log: that owner's part failed",
    "unexpected_messages_total": "Messages that this role does not take",
    "orphan_pauses_total": "Routers whose silence paused their requests here",
    "orphan_ends_total": "Routers whose requests were released because they did not come back",
    # --- lines and sessions
    "line_rate_bytes": "Bytes per second that a line is estimated to carry, by line",
    "line_rtt_seconds": "Smoothed round trip, by line",
    "line_unsent_bytes": "Bytes of transfers that wait for a line or are not acknowledged, by line and class",
    "line_sent_bytes_total": "Bytes of KV handed to a line, by line and class",
    "line_outstanding_bytes": "Bytes that wait for a line at all its senders, as the router counts them",
    "line_oldest_seconds": "Age of the oldest transfer that waits for a line, by line",
    "line_cap_bytes": "Bytes per second that a line may carry, from the mesh file, by line; 0: no cap",
    "line_share_bytes": "Bytes per second that this sender may use now, by line",
    "transport_sessions_opened_total": "Sessions with peers that began anew",
    "transport_sessions_resumed_total": "Sessions that went on after a reconnect",
    "transport_sessions_lost_total": "Sessions that ended",
    "transport_bulk_reconnects_total": "Bulk connections made again",
    "transport_bulk_stalls_total": "Bulk connections closed because no byte was acknowledged",
    "transport_dropped_sends_total": "Messages for peers without a session",
    "transport_control_bytes_out_total": "Bytes of control frames written",
    "transport_control_bytes_in_total": "Bytes of numbered control frames received",
    "transport_control_bytes_resent_total": "Bytes of control frames written again after a reconnect",
    "transport_chunk_bytes_out_total": "Bytes of KV chunks handed to the sockets",
    "transport_chunk_bytes_in_total": "Bytes of KV chunks received whole",
    "transport_chunk_bytes_scratch_total": "Of these, bytes that had no place in a block",
    "transport_handshake_timeouts_total": "Connections closed because their handshake took too long",
    "transport_refused_*_total": "Connections ended over what the peer sent, by the error's code",
}


def meaning_of(name: str) -> str:
    """What a metric means, by its name without `pdd_`; the name where the table does not know it."""
    text = MEANINGS.get(name)
    if text is None:
        patterns = [pattern for pattern in MEANINGS if fnmatch.fnmatchcase(name, pattern)]
        text = MEANINGS[max(patterns, key=len)] if patterns else name
    return text
