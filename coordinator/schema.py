"""The tables of the ledger, as a list of migrations: entry n brings a ledger from version n to n + 1.

Times are Unix seconds (UTC). Digests are SHA-256, hex. JSON columns hold canonical JSON.
"""

from __future__ import annotations

__all__ = ["MIGRATIONS"]

_FIRST = """
CREATE TABLE silo (
    name TEXT PRIMARY KEY,
    enrolled_unix REAL NOT NULL,
    revoked_unix REAL,                      -- NULL: not revoked
    joined_unix REAL,                       -- first AwaitTask; NULL: never
    seen_unix REAL,                         -- last RPC
    version TEXT NOT NULL DEFAULT '',
    methods_json TEXT NOT NULL DEFAULT '[]',
    labelled_count INTEGER NOT NULL DEFAULT 0,
    unlabelled_count INTEGER NOT NULL DEFAULT 0,
    memory_study TEXT NOT NULL DEFAULT '',
    memory_round INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE invitation (
    token_hash BLOB PRIMARY KEY,
    silo TEXT NOT NULL,
    created_unix REAL NOT NULL,
    expires_unix REAL NOT NULL,
    used_unix REAL,
    key_fingerprint BLOB,
    certificate_der BLOB
) STRICT;
CREATE TABLE certificate (
    serial TEXT PRIMARY KEY,                -- decimal: larger than SQLite's integers
    silo TEXT NOT NULL,
    issued_unix REAL NOT NULL,
    not_after_unix REAL NOT NULL,
    revoked_unix REAL
) STRICT;
CREATE TABLE study (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL UNIQUE,       -- order in the queue
    state TEXT NOT NULL,
    config_json TEXT NOT NULL,              -- frozen when queued
    frozen_json TEXT,                       -- what is measured when it starts
    numerics_json TEXT,
    baseline_json TEXT,                     -- the labelled-only line
    queued_unix REAL NOT NULL,
    started_unix REAL,
    ended_unix REAL,
    reason TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE round (
    study TEXT NOT NULL REFERENCES study(name),
    number INTEGER NOT NULL,                -- 0 = preparation
    state TEXT NOT NULL,
    phase INTEGER NOT NULL DEFAULT 0,       -- index of the current phase
    phases_json TEXT NOT NULL DEFAULT '[]',
    sample_json TEXT NOT NULL DEFAULT '[]',
    opened_unix REAL NOT NULL,
    closed_unix REAL,
    start_digest TEXT NOT NULL,             -- state file when the round opened; '' for round 0
    state_digest TEXT NOT NULL,             -- state file after the phases done so far; committed when COMPLETED
    metrics_json TEXT NOT NULL DEFAULT '{}',
    reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (study, number)
) STRICT;
CREATE TABLE phase (
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    quorum INTEGER NOT NULL,
    opened_unix REAL NOT NULL,
    deadline_unix REAL NOT NULL,
    limit_unix REAL NOT NULL,
    closed_unix REAL,
    expects_json TEXT NOT NULL,
    PRIMARY KEY (study, round, number),
    FOREIGN KEY (study, round) REFERENCES round(study, number)
) STRICT;
CREATE TABLE task (
    task_id TEXT PRIMARY KEY,
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    phase INTEGER NOT NULL,
    silo TEXT NOT NULL,
    state TEXT NOT NULL,
    spec_json TEXT NOT NULL,
    opened_unix REAL NOT NULL,
    given_unix REAL,                        -- first time the silo was told
    closed_unix REAL,
    update_id TEXT,                         -- the accepted outcome
    reason TEXT NOT NULL DEFAULT '',
    metrics_json TEXT NOT NULL DEFAULT '{}',
    UNIQUE (study, round, phase, silo)
) STRICT;
CREATE TABLE declared_update (
    update_id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL REFERENCES task(task_id),
    digest TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    groups_json TEXT NOT NULL,              -- group -> encoded bytes
    example_count INTEGER NOT NULL,
    metrics_json TEXT NOT NULL,
    training_seconds REAL NOT NULL,
    declared_unix REAL NOT NULL,
    accepted_unix REAL,
    folded INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE silo_state (
    study TEXT NOT NULL,
    silo TEXT NOT NULL,
    last_folded_round INTEGER NOT NULL DEFAULT 0,
    kept_digest TEXT,                       -- state file of what the strategy keeps for this silo
    pending_round INTEGER,                  -- folded, but the round is not committed yet
    pending_kept_digest TEXT,
    PRIMARY KEY (study, silo)
) STRICT;
CREATE TABLE cost (
    study TEXT NOT NULL,                    -- '' outside of studies
    round INTEGER NOT NULL,
    phase TEXT NOT NULL,
    silo TEXT NOT NULL,                     -- '' = overhead: bytes that belong to no silo
    direction TEXT NOT NULL CHECK (direction IN ('down', 'up')),
    kind TEXT NOT NULL CHECK (kind IN ('payload', 'message', 'wire')),
    item TEXT NOT NULL,                     -- tensor group for payload, RPC for message, 'tcp' for wire
    bytes INTEGER NOT NULL,
    count INTEGER NOT NULL DEFAULT 0,
    estimated INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX cost_by_round ON cost (study, round, kind);
CREATE INDEX task_by_round ON task (study, round, phase);
CREATE TABLE event (
    number INTEGER PRIMARY KEY,
    unix REAL NOT NULL,
    kind TEXT NOT NULL,
    study TEXT NOT NULL,
    detail_json TEXT NOT NULL,
    chain TEXT NOT NULL                     -- SHA-256 over the previous chain and this row
) STRICT;
CREATE TRIGGER event_is_append_only_1 BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER event_is_append_only_2 BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
"""

MIGRATIONS: tuple[str, ...] = (_FIRST,)
