"""Why a job waits or can never run: codes, and the numbers that go with each. No words: they are made in the reader's language at the edge.

``PARAMS`` is the contract with the edge: a Reason of a code carries exactly these params. A param may be None where its
comment says so; sizes are MiB. ``node`` is a node's name, ``gpu`` a card's index on that node.
"""

from __future__ import annotations

from typing import Final

from jobs.scheduler import access

# Waiting: something that runs, or somebody, is in the way now.
GPU_MEMORY: Final = "gpu_memory"
GPU_COUNT: Final = "gpu_count"
WHOLE_CARD_BUSY: Final = "whole_card_busy"
SLICE_LIMIT: Final = "slice_limit"
FOREIGN_USE: Final = "foreign_use"
BLOCKED_BY: Final = "blocked_by"
ABOVE_SHARE: Final = "above_share"
QUEUE_FULL: Final = "queue_full"
NODES_SHORT: Final = "nodes_short"
CPU_BUSY: Final = "cpu_busy"
HOST_CPU: Final = "host_cpu"
HOST_MEMORY: Final = "host_memory"
# Waiting: hardware is out of service.
NO_NODE: Final = "no_node"
NO_GPU: Final = "no_gpu"
NODE_CORDONED: Final = "node_cordoned"
NODE_NOT_READY: Final = "node_not_ready"
NODE_UNSAFE: Final = "node_unsafe"
GPU_UNHEALTHY: Final = "gpu_unhealthy"
MEMORY_UNKNOWN: Final = "memory_unknown"
# Waiting: held; these come with the job (``Job.hold``, ``Job.hold_params``) and pass through unchanged.
HELD: Final = "held"
QUOTA_EXCEEDED: Final = "quota_exceeded"
CARDS_EXCEEDED: Final = "cards_exceeded"
MODEL_CARDS_EXCEEDED: Final = "model_cards_exceeded"
RESTORED: Final = "restored"
BACKING_OFF: Final = "backing_off"
# One card or one node is of the wrong kind; said by ``grant_for`` and ``fits``, and by ``plan`` only as a never_* code.
VENDOR: Final = "vendor"
MODEL: Final = "model"
ARCH: Final = "arch"
GPU_TOO_SMALL: Final = "gpu_too_small"
CUDA: Final = "cuda"
DRIVER: Final = "driver"
LABEL: Final = "label"
NODE_CPU: Final = "node_cpu"
NODE_MEMORY: Final = "node_memory"
ACCOUNT: Final = access.ACCOUNT
ISOLATION: Final = access.FIRST_ADMIN
SECRET_ISOLATION: Final = access.NO_SECRETS
SHARED_ADDRESS: Final = access.ONE_NODE
# Never: whatever ends, no card or node of this cluster can hold it.
NEVER_VENDOR: Final = "never_vendor"
NEVER_MODEL: Final = "never_model"
NEVER_ARCH: Final = "never_arch"
NEVER_CUDA: Final = "never_cuda"
NEVER_DRIVER: Final = "never_driver"
NEVER_LABEL: Final = "never_label"
NEVER_NODE_CPU: Final = "never_node_cpu"
NEVER_NODE_MEMORY: Final = "never_node_memory"
NEVER_ACCOUNT: Final = "never_account"
NEVER_ISOLATION: Final = "never_isolation"
NEVER_SECRET_ISOLATION: Final = "never_secret_isolation"  # noqa: S105 - a code
NEVER_SHARED_ADDRESS: Final = "never_shared_address"
NEVER_GPU_MEMORY: Final = "never_gpu_memory"
NEVER_GPU_COUNT: Final = "never_gpu_count"
NEVER_NODES: Final = "never_nodes"
TOO_MANY_NODES: Final = "too_many_nodes"
UNEVEN_NODES: Final = "uneven_nodes"
INVALID_REQUEST: Final = "invalid_request"
# Only from the re-check of a plan that has grown old.
GRANT_GONE: Final = "grant_gone"

#: code -> {param: what it holds}. docs/scheduling.md prints the same table; a test compares them.
PARAMS: Final[dict[str, dict[str, str]]] = {
    GPU_MEMORY: {
        "needed_mib": "asked for on each card",
        "count": "cards asked for on one node",
        "largest_free_mib": "the most that `count` cards of one node have free each",
        "node": "where that is",
        "gpu": "the card with that much free",
    },
    GPU_COUNT: {
        "needed": "cards asked for on one node",
        "free": "the most suitable free cards on one node",
        "node": "where that is",
        "nodes": "nodes asked for",
        "nodes_free": "nodes that have enough free cards now",
    },
    WHOLE_CARD_BUSY: {
        "needed_mib": "asked for; None = a whole card whatever its size",
        "cards": "cards that could serve the job; other jobs are on each",
        "largest_free_mib": "the most that one of them has free; not enough, as the job needs the card alone",
        "node": "where that is",
        "gpu": "the card with that much free",
    },
    SLICE_LIMIT: {
        "limit": "slices that may live on one card",
        "needed_mib": "asked for",
        "free_mib": "memory that the card has free",
        "node": "where that is",
        "gpu": "the card",
    },
    FOREIGN_USE: {
        "needed_mib": "asked for; None = a whole card",
        "largest_free_mib": "the most that is really free on one card",
        "foreign_mib": "used there by processes that belong to no job",
        "node": "where that is",
        "gpu": "the card",
    },
    BLOCKED_BY: {"job": "the job ahead that the free cards are kept for", "node": "where they are"},
    ABOVE_SHARE: {"held": "cards that the owner holds", "share": "its fair share now; others below theirs wait for such cards"},
    QUEUE_FULL: {"queue": "the job's queue", "held": "cards that its jobs hold", "most": "cards that they may hold"},
    NODES_SHORT: {"needed": "nodes asked for", "free": "nodes that take work now"},
    CPU_BUSY: {
        "needed": "nodes asked for",
        "free": "nodes that have room for one more rank without a card",
        "limit": "such ranks that the largest node runs at once, one a core",
        "node": "that node",
    },
    HOST_CPU: {
        "needed_milli": "thousandths of a core asked for on each node",
        "largest_free_milli": "the most that a suitable node has free; None = unknown",
        "node": "where that is",
    },
    HOST_MEMORY: {
        "needed_mib": "host memory asked for on each node",
        "largest_free_mib": "the most that a suitable node has free; None = unknown",
        "node": "where that is",
    },
    NO_NODE: {},
    NO_GPU: {"nodes": "known nodes, none of which has a card"},
    NODE_CORDONED: {"node": "a node that could serve the job", "nodes": "how many such nodes are cordoned"},
    NODE_NOT_READY: {"node": "a node that could serve the job", "state": "its state", "nodes": "how many such nodes are not ready"},
    NODE_UNSAFE: {"node": "a node that could serve the job", "nodes": "how many such nodes can't start a job safely"},
    GPU_UNHEALTHY: {
        "node": "where it is",
        "gpu": "a card that could serve the job",
        "state": "its state",
        "cards": "how many such cards are out of service",
    },
    MEMORY_UNKNOWN: {"node": "where it is", "gpu": "a card whose memory size can't be read", "cards": "how many such cards there are"},
    HELD: {"by": "who holds it; None = the system", "why": "what they wrote; None = nothing"},
    QUOTA_EXCEEDED: {"used": "used so far", "limit": "the limit", "resets_at": "when the limit starts anew; None = never"},
    MODEL_CARDS_EXCEEDED: {
        "model": "the card model that is limited",
        "needed": "cards asked for",
        "room": "cards of it that the owner or the project may still hold",
        "limit": "cards of it that may be held",
    },
    CARDS_EXCEEDED: {"needed": "cards asked for", "room": "cards that the owner or the project may still hold"},
    RESTORED: {},
    BACKING_OFF: {"times": "launches that nodes spoilt", "pause_s": "seconds from the last of them to the next try"},
    VENDOR: {"asked": "asked for", "have": "what the card is"},
    MODEL: {"asked": "asked for", "have": "what the card is"},
    ARCH: {"asked": "asked for", "have": "what the card is; None = unknown"},
    GPU_TOO_SMALL: {"needed_mib": "asked for", "nominal_mib": "the card's nominal size"},
    CUDA: {"asked": "the least asked for", "have": "the newest that the node runs; None = unknown"},
    DRIVER: {"asked": "the least asked for", "have": "what the node has; None = unknown"},
    LABEL: {"asked": "key=value asked for", "have": "the node's value of that key; None = it has none"},
    NODE_CPU: {"needed_milli": "thousandths of a core asked for", "have_milli": "what the node has; None = unknown"},
    NODE_MEMORY: {"needed_mib": "host memory asked for", "have_mib": "what the node has; None = unknown"},
    ACCOUNT: {"node": "where jobs run as their owner's own Unix account; this owner has none"},
    ISOLATION: {"node": "where people's jobs are not kept apart"},
    SECRET_ISOLATION: {"node": "where people's jobs are not kept apart"},
    SHARED_ADDRESS: {"node": "which other nodes can't call at the address that it tells"},
    NEVER_VENDOR: {"asked": "asked for", "have": "the vendors here, sorted"},
    NEVER_MODEL: {"asked": "asked for", "have": "the models here, sorted"},
    NEVER_ARCH: {"asked": "asked for", "have": "the compute capabilities here, sorted"},
    NEVER_CUDA: {"asked": "the least asked for", "have": "the CUDA versions here, sorted"},
    NEVER_DRIVER: {"asked": "the least asked for", "have": "the driver versions here, sorted"},
    NEVER_LABEL: {"asked": "key=value asked for", "have": "the values of that key here, sorted"},
    NEVER_NODE_CPU: {
        "needed_milli": "thousandths of a core asked for on each node",
        "largest_milli": "the most that a suitable node has",
        "node": "that node",
    },
    NEVER_NODE_MEMORY: {
        "needed_mib": "host memory asked for on each node",
        "largest_mib": "the most that a suitable node has",
        "node": "that node",
    },
    NEVER_ACCOUNT: {"node": "one of the suitable nodes; jobs run as their owner's own Unix account there, and this owner has none"},
    NEVER_ISOLATION: {"node": "one of the suitable nodes; people's jobs are not kept apart on any of them"},
    NEVER_SECRET_ISOLATION: {"node": "one of the suitable nodes; people's jobs are not kept apart on any of them"},
    NEVER_SHARED_ADDRESS: {"node": "one of the suitable nodes; other nodes can't call any of them"},
    NEVER_GPU_MEMORY: {
        "needed_mib": "asked for on one card",
        "largest_nominal_mib": "nominal size of the largest suitable card",
        "node": "where that is",
        "gpu": "the card",
    },
    NEVER_GPU_COUNT: {
        "needed": "cards asked for on one node",
        "largest": "the most suitable cards that one node has",
        "node": "where that is",
        "hint_nodes": "the job could run with this --nodes; None = with none",
    },
    NEVER_NODES: {"needed": "nodes asked for", "have": "nodes that have enough suitable cards", "per_node": "cards asked for on each"},
    TOO_MANY_NODES: {"needed": "nodes asked for", "have": "nodes known"},
    UNEVEN_NODES: {"gpu_count": "cards asked for", "nodes": "nodes asked for; cards must divide evenly"},
    INVALID_REQUEST: {"field": "the field of the request", "value": "what it holds", "least": "the least it may hold"},
    GRANT_GONE: {"node": "where the plan put the job", "gpu": "the id of the card that the grant is not good on any more"},
}

NEVER: Final = frozenset(
    {
        NEVER_VENDOR,
        NEVER_MODEL,
        NEVER_ARCH,
        NEVER_CUDA,
        NEVER_DRIVER,
        NEVER_LABEL,
        NEVER_NODE_CPU,
        NEVER_NODE_MEMORY,
        NEVER_ACCOUNT,
        NEVER_ISOLATION,
        NEVER_SECRET_ISOLATION,
        NEVER_SHARED_ADDRESS,
        NEVER_GPU_MEMORY,
        NEVER_GPU_COUNT,
        NEVER_NODES,
        TOO_MANY_NODES,
        UNEVEN_NODES,
        INVALID_REQUEST,
    }
)
