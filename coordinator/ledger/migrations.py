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

_ENCODINGS_AND_TOTALS = """
CREATE TABLE encoded (                      -- what payloads took, by encoding: common/payload/usage.py
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    direction TEXT NOT NULL CHECK (direction IN ('down', 'up')),
    encoding TEXT NOT NULL,
    blocks INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    dense_bytes INTEGER NOT NULL,
    PRIMARY KEY (study, round, direction, encoding)
) STRICT, WITHOUT ROWID;
CREATE TABLE cost_total (                   -- sums of table cost: a study of 500 rounds has a million rows there
    study TEXT NOT NULL,
    silo TEXT NOT NULL,
    direction TEXT NOT NULL,
    kind TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (study, silo, direction, kind)
) STRICT, WITHOUT ROWID;
INSERT INTO cost_total SELECT study, silo, direction, kind, sum(bytes), sum(count) FROM cost
    GROUP BY study, silo, direction, kind;
CREATE TRIGGER cost_is_totalled AFTER INSERT ON cost BEGIN
    INSERT INTO cost_total VALUES (NEW.study, NEW.silo, NEW.direction, NEW.kind, NEW.bytes, NEW.count)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes, count = count + excluded.count;
END;
CREATE INDEX task_by_outcome ON task (study, silo, state);
CREATE TABLE tracking (                     -- what experiment trackers know of a study
    study TEXT NOT NULL,
    target TEXT NOT NULL,                   -- the tracker's address
    run TEXT NOT NULL,                      -- its name for the study
    round INTEGER NOT NULL DEFAULT -1,      -- last round that it was told of
    complete INTEGER NOT NULL DEFAULT 0,    -- whether it was told of the end, with the report and the model
    PRIMARY KEY (study, target)
) STRICT, WITHOUT ROWID;
"""

_LEAVING = """
ALTER TABLE silo ADD COLUMN left_unix REAL;                         -- NULL: has not left
ALTER TABLE silo ADD COLUMN away_reason TEXT NOT NULL DEFAULT '';   -- why it takes no task by its own policy
ALTER TABLE silo ADD COLUMN away_until_unix REAL NOT NULL DEFAULT 0;
"""

_BYTES_BY_DAY = """
CREATE TABLE wire_by_day (                  -- wire bytes by the coordinator's local date, since ledger version 4
    day TEXT NOT NULL,                      -- YYYY-MM-DD
    silo TEXT NOT NULL,                     -- '' = overhead
    direction TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (day, silo, direction)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER cost_is_dated AFTER INSERT ON cost WHEN NEW.kind = 'wire' BEGIN
    INSERT INTO wire_by_day VALUES (date('now', 'localtime'), NEW.silo, NEW.direction, NEW.bytes)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
"""

_MANY_SILOS = """
CREATE INDEX declared_update_by_task ON declared_update (task_id);
CREATE INDEX certificate_by_silo ON certificate (silo);
CREATE INDEX open_task_by_silo ON task (silo) WHERE state = 'open';
CREATE INDEX open_task_by_round ON task (study, round, phase) WHERE state = 'open';
"""
"""What is asked for each silo, or whenever one has answered, costs the same in the thousandth round as in the first."""

_NOTABLE = """CASE task.state WHEN 'expired' THEN 0 WHEN 'cancelled' THEN 1 WHEN 'refused' THEN 2
    WHEN 'abstained' THEN 3 WHEN 'open' THEN 4 ELSE 5 END"""
"""How much an answer stands out, as in `semisilo.coordinator.monitoring.outcomes`; a test holds them equal."""

_SUMS_OF_ROUNDS = f"""
DROP INDEX cost_by_round;
CREATE INDEX cost_by_silo_of_round ON cost (study, round, kind, silo);
CREATE TABLE round_total (                  -- sums of table cost by round: a thousand silos make 17,000 rows there
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    direction TEXT NOT NULL,
    kind TEXT NOT NULL,
    item TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    count INTEGER NOT NULL,
    overhead INTEGER NOT NULL,              -- bytes among them that belong to no silo
    silos INTEGER NOT NULL,                 -- of kind payload: silos of which this item came first in this direction
    estimated INTEGER NOT NULL,
    PRIMARY KEY (study, round, direction, kind, item)
) STRICT, WITHOUT ROWID;
INSERT INTO round_total SELECT study, round, direction, kind, item, sum(bytes), sum(count),
        sum(CASE WHEN silo = '' THEN bytes ELSE 0 END), 0, max(estimated)
    FROM cost GROUP BY study, round, direction, kind, item;
UPDATE round_total SET silos = (SELECT count(DISTINCT silo) FROM cost WHERE cost.study = round_total.study
        AND cost.round = round_total.round AND cost.kind = 'payload' AND cost.direction = round_total.direction
        AND cost.bytes > 0)
    WHERE kind = 'payload' AND item = (SELECT min(item) FROM round_total AS other WHERE other.study = round_total.study
        AND other.round = round_total.round AND other.kind = 'payload' AND other.direction = round_total.direction);
CREATE TRIGGER cost_is_totalled_by_round AFTER INSERT ON cost BEGIN
    INSERT INTO round_total VALUES (NEW.study, NEW.round, NEW.direction, NEW.kind, NEW.item, NEW.bytes, NEW.count,
            CASE WHEN NEW.silo = '' THEN NEW.bytes ELSE 0 END,
            NEW.kind = 'payload' AND NEW.bytes > 0 AND NOT EXISTS (SELECT 1 FROM cost WHERE study = NEW.study
                AND round = NEW.round AND kind = 'payload' AND silo = NEW.silo AND direction = NEW.direction
                AND bytes > 0 AND rowid <> NEW.rowid),
            NEW.estimated)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes, count = count + excluded.count,
            overhead = overhead + excluded.overhead, silos = silos + excluded.silos,
            estimated = max(estimated, excluded.estimated);
END;
CREATE TABLE round_outcome (                -- what silos answered to a round that is over, all phases together
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    silos INTEGER NOT NULL,
    PRIMARY KEY (study, round, outcome)
) STRICT, WITHOUT ROWID;
CREATE TABLE silo_total (                   -- sums over the rounds of a study that are over
    study TEXT NOT NULL,
    silo TEXT NOT NULL,
    asked INTEGER NOT NULL,                 -- rounds
    updated INTEGER NOT NULL,               -- committed rounds with its update
    examples INTEGER NOT NULL,              -- of these rounds, of several phases the largest number
    last_reason TEXT NOT NULL,              -- why it last gave another answer; '' when it never did
    last_reason_round INTEGER NOT NULL,
    PRIMARY KEY (study, silo)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER round_is_totalled AFTER UPDATE OF closed_unix ON round
    WHEN NEW.closed_unix IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM round_outcome WHERE study = NEW.study AND round = NEW.number) BEGIN
    INSERT INTO silo_total SELECT NEW.study, answer.silo, 1, answer.state = 'updated' AND NEW.state = 'completed',
            CASE WHEN answer.state = 'updated' AND NEW.state = 'completed' THEN size.examples ELSE 0 END,
            answer.reason, CASE WHEN answer.reason = '' THEN 0 ELSE NEW.number END
        FROM (SELECT silo, state, reason, min({_NOTABLE} * 1000000 + (reason = '') * 100000 + phase) FROM task
                WHERE study = NEW.study AND round = NEW.number GROUP BY +silo) AS answer
        JOIN (SELECT silo, max(coalesce(example_count, 0)) AS examples FROM task LEFT JOIN declared_update
                ON declared_update.update_id = task.update_id
                WHERE study = NEW.study AND round = NEW.number GROUP BY +silo) AS size ON size.silo = answer.silo
        WHERE true
        ON CONFLICT DO UPDATE SET asked = asked + 1, updated = updated + excluded.updated,
            examples = examples + excluded.examples,
            last_reason = CASE WHEN excluded.last_reason = '' THEN last_reason ELSE excluded.last_reason END,
            last_reason_round = max(last_reason_round, excluded.last_reason_round);
    INSERT INTO round_outcome SELECT NEW.study, NEW.number, state, count(*) FROM
        (SELECT state, min({_NOTABLE}) FROM task WHERE study = NEW.study AND round = NEW.number GROUP BY +silo)
        WHERE true GROUP BY state;
END;
UPDATE round SET closed_unix = closed_unix WHERE closed_unix IS NOT NULL;
"""
"""A study of 1,000 silos and 500 rounds has half a million tasks and more than eight million costs: who only wants to
know how it goes reads none of them."""

_SITE_EVALUATIONS = """
CREATE TABLE site_evaluation (              -- global models on the test images of silos whose policy permits to say so
    study TEXT NOT NULL,
    silo TEXT NOT NULL,
    round INTEGER NOT NULL,                 -- after which the model was what it was
    labels_alone INTEGER NOT NULL,          -- 1: the model of labels alone in its place
    classes_json TEXT NOT NULL,             -- by label: images, right ones, area under the curve
    unix REAL NOT NULL,
    PRIMARY KEY (study, silo, round, labels_alone)
) STRICT, WITHOUT ROWID;
"""

_SILENT_SILOS = """
ALTER TABLE silo ADD COLUMN silent_unix REAL;   -- when it was last heard, while it is silent; NULL: it is not
"""

_NO_SILO_IN_COMMAND = """
ALTER TABLE silo ADD COLUMN set_aside_unix REAL;                    -- NULL: the operator lets it take part
ALTER TABLE silo ADD COLUMN set_aside_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE declared_update ADD COLUMN norm REAL;                   -- of an update that was folded or left out
ALTER TABLE declared_update ADD COLUMN cosine REAL;                 -- to the mean of its phase
CREATE TABLE notice (                       -- what an operator should hear of a silo
    number INTEGER PRIMARY KEY,
    unix REAL NOT NULL,
    study TEXT NOT NULL,                    -- '' outside of studies
    round INTEGER NOT NULL,                 -- 0 outside of rounds
    silo TEXT NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE INDEX notice_by_study ON notice (study, silo, kind);
ALTER TABLE study ADD COLUMN oldest_return INTEGER NOT NULL DEFAULT 0;  -- before this round `kept_state` knows nothing
CREATE TABLE kept_state (                   -- table silo_state as it was after each committed round
    study TEXT NOT NULL,
    silo TEXT NOT NULL,
    round INTEGER NOT NULL,                 -- in which an update of the silo was folded
    kept_digest TEXT,
    PRIMARY KEY (study, silo, round)
) STRICT, WITHOUT ROWID;
INSERT INTO kept_state SELECT study, silo, last_folded_round, kept_digest FROM silo_state WHERE last_folded_round > 0;
UPDATE study SET oldest_return = coalesce((SELECT max(number) FROM round WHERE round.study = study.name
    AND round.state = 'completed'), 0);
CREATE TABLE rollback (                     -- a study went back to an earlier round
    number INTEGER PRIMARY KEY,
    study TEXT NOT NULL,
    to_round INTEGER NOT NULL,
    unix REAL NOT NULL,
    origin TEXT NOT NULL,                   -- as in events
    operator TEXT NOT NULL,                 -- the account of who asked for it
    reason TEXT NOT NULL
) STRICT;
CREATE INDEX rollback_by_study ON rollback (study);
CREATE TABLE past_round (                   -- rounds that are no more the study's
    rollback INTEGER NOT NULL REFERENCES rollback(number),
    study TEXT NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    sample_json TEXT NOT NULL,
    opened_unix REAL NOT NULL,
    closed_unix REAL,
    state_digest TEXT NOT NULL,
    metrics_json TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (rollback, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE past_answer (                  -- and what silos had answered in them
    rollback INTEGER NOT NULL,
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    phase TEXT NOT NULL,
    silo TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    example_count INTEGER,
    norm REAL,
    cosine REAL,
    metrics_json TEXT NOT NULL,
    PRIMARY KEY (rollback, round, phase, silo)
) STRICT, WITHOUT ROWID;
"""

_AUDIT = """
CREATE TABLE audit_head (                   -- the last head of the audit trail that was signed for a silo
    id INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL,
    chain TEXT NOT NULL,
    unix REAL NOT NULL,
    restored_unix REAL NOT NULL,            -- 0: never restored
    backup_unix REAL NOT NULL,
    signature BLOB NOT NULL,
    certificate_der BLOB NOT NULL
) STRICT;
CREATE TABLE operator (                     -- who may act on the operator page under a name
    name TEXT NOT NULL,
    token_hash BLOB PRIMARY KEY,
    added_unix REAL NOT NULL,
    removed_unix REAL                       -- NULL: the token works
) STRICT;
CREATE UNIQUE INDEX operator_by_name ON operator (name) WHERE removed_unix IS NULL;
"""

_OUTCOMES = f"""SELECT task.*, {_NOTABLE.replace("ELSE 5", "WHEN 'updated' THEN 5 ELSE 6")} AS notable FROM task
            LEFT JOIN phase ON phase.study = task.study AND phase.round = task.round AND phase.number = task.phase
            WHERE task.study = NEW.study AND task.round = NEW.number
            AND coalesce(phase.step, '') NOT IN ('confirm', 'unmask')"""
"""Of the steps of a secure sum those up to the masked update: whoever drops out behind it is in the sum."""

_SECURE_SUMS = f"""
ALTER TABLE phase ADD COLUMN step TEXT NOT NULL DEFAULT '';     -- of a secure sum; '': updates go in the clear
CREATE TABLE secure_sum (                   -- updates of one phase of a round that are added up behind masks
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    phase TEXT NOT NULL,                    -- of the method
    nonce BLOB NOT NULL,
    threshold INTEGER NOT NULL,
    roster_number INTEGER NOT NULL,         -- last entry of the roster when it was opened
    form_json TEXT,                         -- how tensors become words; NULL before step "mask"
    outcome_json TEXT,                      -- what the next sum follows from; NULL until it is made
    PRIMARY KEY (study, round, phase)
) STRICT, WITHOUT ROWID;
CREATE TABLE step_answer (                  -- what silos answered to steps of open sums; goes with the round
    task_id TEXT PRIMARY KEY,
    study TEXT NOT NULL,
    answer BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE silo_identity (                -- the roster: keys that silos know one another by, as a hash chain
    number INTEGER PRIMARY KEY,
    silo TEXT NOT NULL,
    identity BLOB NOT NULL,
    change TEXT NOT NULL,                   -- 'added' or 'removed'
    chain BLOB NOT NULL,
    unix REAL NOT NULL
) STRICT;
CREATE INDEX identity_by_silo ON silo_identity (silo, number);
DROP TRIGGER round_is_totalled;
CREATE TRIGGER round_is_totalled AFTER UPDATE OF closed_unix ON round
    WHEN NEW.closed_unix IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM round_outcome WHERE study = NEW.study AND round = NEW.number) BEGIN
    INSERT INTO silo_total SELECT NEW.study, answer.silo, 1, answer.state = 'updated' AND NEW.state = 'completed',
            CASE WHEN answer.state = 'updated' AND NEW.state = 'completed' THEN size.examples ELSE 0 END,
            answer.reason, CASE WHEN answer.reason = '' THEN 0 ELSE NEW.number END
        FROM (SELECT silo, state, reason, min(notable * 1000000 + (reason = '') * 100000 + phase) FROM
                ({_OUTCOMES}) GROUP BY +silo) AS answer
        JOIN (SELECT silo, max(coalesce(example_count, 0)) AS examples FROM task LEFT JOIN declared_update
                ON declared_update.update_id = task.update_id
                WHERE study = NEW.study AND round = NEW.number GROUP BY +silo) AS size ON size.silo = answer.silo
        WHERE true
        ON CONFLICT DO UPDATE SET asked = asked + 1, updated = updated + excluded.updated,
            examples = examples + excluded.examples,
            last_reason = CASE WHEN excluded.last_reason = '' THEN last_reason ELSE excluded.last_reason END,
            last_reason_round = max(last_reason_round, excluded.last_reason_round);
    INSERT INTO round_outcome SELECT NEW.study, NEW.number, state, count(*) FROM
        (SELECT state, min(notable) FROM ({_OUTCOMES}) GROUP BY +silo) WHERE true GROUP BY state;
END;
"""

_STUDY_CARDS = """
CREATE TABLE study_card (                   -- what a study asks of every silo; a new one when that changes
    study TEXT NOT NULL,
    digest TEXT NOT NULL,
    card_json TEXT NOT NULL,
    made_unix REAL NOT NULL,
    PRIMARY KEY (study, digest)
) STRICT;
CREATE TABLE card_signature (               -- silos that have signed one
    study TEXT NOT NULL,
    digest TEXT NOT NULL,
    silo TEXT NOT NULL,
    identity BLOB NOT NULL,                 -- the key in the roster of identities that it is signed with
    signature BLOB NOT NULL,
    signed_unix REAL NOT NULL,
    PRIMARY KEY (study, digest, silo)
) STRICT, WITHOUT ROWID;
"""

_CONFUSION = """
CREATE TABLE confusion (                    -- of the model of a committed round, on the test images
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    counts_json TEXT NOT NULL,              -- a list for each true class, of counts by predicted class
    PRIMARY KEY (study, round)
) STRICT, WITHOUT ROWID;
"""

_OPEN_ROUNDS = """
CREATE INDEX open_round ON round (study, number) WHERE closed_unix IS NULL;
"""
"""What the files of open rounds are found by, in all studies at once: each has one such round at most."""

_EVENTS_BY_STUDY = """
CREATE INDEX event_by_study ON event (study, kind, number);
"""
"""A study of 1,000 silos and 500 rounds leaves some 600,000 events, and questions about one of its events must not hold
up the answers to silos."""

_TRIES = """
ALTER TABLE rollback ADD COLUMN cost_row INTEGER NOT NULL DEFAULT 0;    -- rows of table cost up to this are of rounds
                                                                        -- that are gone; 0: not known
DROP TRIGGER cost_is_totalled_by_round;
CREATE TRIGGER cost_is_totalled_by_round AFTER INSERT ON cost BEGIN
    INSERT INTO round_total VALUES (NEW.study, NEW.round, NEW.direction, NEW.kind, NEW.item, NEW.bytes, NEW.count,
            CASE WHEN NEW.silo = '' THEN NEW.bytes ELSE 0 END,
            NEW.kind = 'payload' AND NEW.bytes > 0 AND NOT EXISTS (SELECT 1 FROM cost WHERE study = NEW.study
                AND round = NEW.round AND kind = 'payload' AND silo = NEW.silo AND direction = NEW.direction
                AND bytes > 0 AND rowid <> NEW.rowid AND rowid > coalesce((SELECT max(cost_row) FROM rollback
                    WHERE study = NEW.study AND to_round < NEW.round), 0)),
            NEW.estimated)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes, count = count + excluded.count,
            overhead = overhead + excluded.overhead, silos = silos + excluded.silos,
            estimated = max(estimated, excluded.estimated);
END;
"""
"""A round that is done again is sent again: its bytes are compared with dense transfers of every try."""

_PAIRED = """
ALTER TABLE study ADD COLUMN paired_json TEXT;      -- the interval of what it is better by than labels alone
"""

_COMPLAINTS = """
CREATE TABLE complaint (                    -- a silo cannot use what another has sent for a secure sum; until heeded
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    silo TEXT NOT NULL,
    against TEXT NOT NULL,
    PRIMARY KEY (study, round, silo, against)
) STRICT, WITHOUT ROWID;
"""

_PHASES_OF_ONE_NAME = """
ALTER TABLE past_answer RENAME TO past_answer_by_name;
CREATE TABLE past_answer (                  -- and what silos had answered in them
    rollback INTEGER NOT NULL,
    study TEXT NOT NULL,
    round INTEGER NOT NULL,
    phase_number INTEGER NOT NULL,          -- from 0; a round may have two phases of one name. In rows of an earlier
    phase TEXT NOT NULL,                    -- version 0
    silo TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    example_count INTEGER,
    norm REAL,
    cosine REAL,
    metrics_json TEXT NOT NULL,
    PRIMARY KEY (rollback, round, phase_number, phase, silo)
) STRICT, WITHOUT ROWID;
INSERT INTO past_answer SELECT rollback, study, round, 0, phase, silo, state, reason, example_count, norm, cosine,
        metrics_json FROM past_answer_by_name;
DROP TABLE past_answer_by_name;
"""
"""Round 1 of most methods measures statistics, trains, and measures them again."""

MIGRATIONS: tuple[str, ...] = (_FIRST, _ENCODINGS_AND_TOTALS, _LEAVING, _BYTES_BY_DAY, _MANY_SILOS, _SUMS_OF_ROUNDS,
                               _SITE_EVALUATIONS, _SILENT_SILOS, _NO_SILO_IN_COMMAND, _AUDIT, _SECURE_SUMS,
                               _STUDY_CARDS, _CONFUSION, _OPEN_ROUNDS, _EVENTS_BY_STUDY, _TRIES, _PAIRED, _COMPLAINTS,
                               _PHASES_OF_ONE_NAME)
