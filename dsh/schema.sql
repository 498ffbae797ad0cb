-- The whole state of dsh, to be read from top to bottom.
--
--   1. Tables   private, named _like_this; nothing outside this file touches them.
--   2. Views    public, plain nouns; the program and a stock sqlite3 shell read the same ones.
--   3. Rules    triggers: they make views writable and refuse what docs/spec forbids, each with a stable code.
--
-- Everything here loads in SQLite 3.40. Only the search index needs functions of ours (segment, search_tags); they are
-- kept away from the triggers of `event`, so that a stock shell can append and is told the code when it may not.

PRAGMA application_id = 0x64736864;  -- "dshd"

-------------------------------------------------------------------------------------------------- 1. tables

CREATE TABLE _store(                 -- one row: this database's identity, and how far the search index has read
  id INTEGER PRIMARY KEY CHECK (id = 1),
  store_id TEXT NOT NULL,
  indexed INTEGER NOT NULL DEFAULT 0, -- every document of an event up to this internal id is in `search`
  generation INTEGER NOT NULL DEFAULT 0  -- rises with each change of the history that is no append
) STRICT;

CREATE TABLE _migration(             -- what made this schema, in order
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, applied_at INTEGER NOT NULL, program TEXT NOT NULL
) STRICT;

CREATE TABLE _session(               -- header fields, then state that triggers keep; a row exists iff it has events
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  version INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,       -- epoch ms
  cwd TEXT,
  parent TEXT,
  seed_length INTEGER,
  delegation_depth INTEGER NOT NULL DEFAULT 0,
  incarnation TEXT NOT NULL,         -- fresh at each creation, so a re-created id is another log
  start INTEGER NOT NULL DEFAULT 0,  -- first seq of its own: a fork reads those below; -1 while it is being deleted
  generation INTEGER NOT NULL DEFAULT 0,  -- committed surface replacements
  turns INTEGER NOT NULL DEFAULT 0,  -- number of the last turn
  steps INTEGER NOT NULL DEFAULT 0,  -- number of the last step of the open turn
  open_turn INTEGER,
  open_step INTEGER,
  updated_at INTEGER NOT NULL,       -- time of the last event that opened or closed a turn or step
  pinned INTEGER,                    -- epoch ms; a mark of the user's, like the next: no part of the header
  hidden INTEGER,                    -- epoch ms; left out of lists and searches, its events stay for its forks
  source TEXT                        -- the tool that it was imported from; NULL for our own
) STRICT;

CREATE TABLE _event(                 -- one row per event, under the session that wrote it
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL REFERENCES _session(id),
  seq INTEGER NOT NULL,
  type TEXT NOT NULL,
  time INTEGER NOT NULL,             -- epoch ms
  data TEXT NOT NULL,                -- JSON
  source TEXT,                       -- JSON array of earlier seqs, NULL if not recorded
  op TEXT,                           -- JSON: how the event joined the surface; NULL for log-only events
  UNIQUE (session, seq)
) STRICT;
-- Chunks are most of the rows and are only ever read by seq, so no other index carries them. A query that wants one
-- of these indexes must repeat its WHERE term.
CREATE INDEX _event_type ON _event(session, type, seq) WHERE type <> 'assistant/chunk';
CREATE INDEX _event_call ON _event(session, data ->> 'callId') WHERE type IN ('tool/call', 'tool/result');
CREATE INDEX _event_usage ON _event(session, seq)
  WHERE type = 'assistant/chunk' AND data ->> '$.chunk.type' = 'usage';
CREATE INDEX _event_header ON _event(session, seq, data ->> '$.header.config.provider', data ->> '$.header.config.model')
  WHERE type = 'request/header';

CREATE TABLE _lineage(               -- a session sees the events of `owner` below `hi`; a fork of depth d has d+1 rows
  session INTEGER NOT NULL REFERENCES _session(id),
  hi INTEGER NOT NULL,
  owner INTEGER NOT NULL REFERENCES _session(id),  -- last: SQLite 3.40 checks such tables by position, key first
  PRIMARY KEY (session, hi)
) STRICT, WITHOUT ROWID;
CREATE INDEX _lineage_owner ON _lineage(owner);

-- A fork reads the nodes it inherited where they are, and has a row of its own only for each one it replaced: making a
-- fork costs the same however long the log is.
CREATE TABLE _surface(               -- what the model sees, in order of (ord), under the session that wrote it
  session INTEGER NOT NULL REFERENCES _session(id),
  seq INTEGER NOT NULL,
  ord INTEGER NOT NULL,              -- own seq, or for a replacement the ord of the first node it removed
  event INTEGER NOT NULL,            -- _event.id
  died INTEGER,                      -- seq of the event that replaced it
  PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX _surface_now ON _surface(session, ord, seq, event) WHERE died IS NULL;
CREATE INDEX _surface_replacement ON _surface(session, seq) WHERE ord <> seq;
CREATE UNIQUE INDEX _surface_died ON _surface(session, died, seq, ord, event);  -- what is there now, without what was

CREATE TABLE _lease(                 -- the process that drives a session
  session INTEGER PRIMARY KEY REFERENCES _session(id),
  holder TEXT NOT NULL,              -- random token of one agent in one process
  pid INTEGER NOT NULL,
  boot_id TEXT NOT NULL,
  process_start TEXT NOT NULL,       -- tells a reused pid from the holder
  heartbeat INTEGER NOT NULL,        -- epoch ms
  since INTEGER                      -- epoch ms of the claim
) STRICT;

CREATE TABLE _inbox(                 -- what waits for a session's driver, from any process; a row goes in the transaction
  id INTEGER PRIMARY KEY AUTOINCREMENT,  -- that appends the message it becomes; the id is the order
  session INTEGER NOT NULL REFERENCES _session(id),
  message TEXT NOT NULL UNIQUE,      -- AgentMessageId
  route TEXT NOT NULL CHECK (route IN ('followup', 'queue', 'steer', 'inject', 'cancel')),
  content TEXT NOT NULL,             -- JSON array of blocks
  source TEXT NOT NULL,              -- JSON
  contexts TEXT NOT NULL DEFAULT '[]',  -- JSON array of HookContext
  meta TEXT,                         -- JSON; of a cancel: {"keepInbox": bool}
  sent_at INTEGER NOT NULL           -- epoch ms
) STRICT;
CREATE INDEX _inbox_session ON _inbox(session, id);

CREATE TABLE _setting(               -- values of `dsh config set`
  key TEXT PRIMARY KEY, value TEXT NOT NULL CHECK (json_valid(value))
) STRICT, WITHOUT ROWID;

CREATE TABLE _cache(                 -- what can be made anew at any time and is only kept because that takes long
  key TEXT PRIMARY KEY, value TEXT NOT NULL CHECK (json_valid(value))
) STRICT, WITHOUT ROWID;

CREATE TABLE _trust(                 -- folders whose plugins may run
  folder TEXT PRIMARY KEY, trusted_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE _import(                -- what was read of the histories of other tools, so that only what is new is read again
  tool TEXT NOT NULL, path TEXT NOT NULL,
  stamp TEXT NOT NULL,               -- what tells that the file has changed
  state TEXT NOT NULL CHECK (json_valid(state)),
  imported_at INTEGER NOT NULL,      -- epoch ms
  PRIMARY KEY (tool, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE _query(                 -- statements that the user gave a name
  name TEXT PRIMARY KEY, sql TEXT NOT NULL, about TEXT, saved_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-------------------------------------------------------------------------------------------------- 2. views

-- The next seq of a session is read off its last event, not counted: a counter would have every append write one more
-- page. The index on (session, seq) finds it in one seek.
CREATE VIEW _length(session, length) AS
  SELECT s.id, coalesce((SELECT e.seq + 1 FROM _event e WHERE e.session = s.id ORDER BY e.seq DESC LIMIT 1), s.start)
  FROM _session s;

CREATE VIEW session(id, version, created_at, cwd, parent_session, seed_length, delegation_depth, incarnation, revision,
    length, replace_generation, turns, steps, open_turn, open_step, updated_at, pinned, hidden, source) AS
  SELECT s.name, s.version, s.created_at, s.cwd, s.parent, s.seed_length, s.delegation_depth, s.incarnation,
    l.length,                        -- a log only grows, so its length names its state (PE-45)
    l.length, s.generation, s.turns, s.steps, s.open_turn, s.open_step, s.updated_at, s.pinned, s.hidden,
    s.source
  FROM _session s JOIN _length l ON l.session = s.id;

CREATE VIEW fork(id, parent_session, boundary, created_at, cwd) AS  -- sessions that share their parent's first events
  SELECT name, parent, seed_length - 1, created_at, cwd FROM _session s
  WHERE EXISTS (SELECT 1 FROM _lineage l WHERE l.session = s.id AND l.owner <> s.id);

-- `part` rises with seq: an ancestor's events are one part of a fork's log, its own the last. Rows asked for ORDER BY
-- part, seq come straight from the index, those by seq alone are all read and sorted first.
CREATE VIEW event(session_id, seq, type, time, data, source_event_seqs, surface_op, part) AS
  SELECT s.name, e.seq, e.type, e.time, e.data, e.source, e.op, l.hi
  FROM _session s JOIN _lineage l ON l.session = s.id JOIN _event e ON e.session = l.owner AND e.seq < l.hi;

CREATE VIEW driver_event(holder, session_id, seq, type, time, data, source_event_seqs, surface_op) AS
  -- never has rows; takes the appends of a session's driver (PE-72, PE-74)
  SELECT NULL, session_id, seq, type, time, data, source_event_seqs, surface_op FROM event WHERE false;

CREATE VIEW lineage(session_id, owner_id, last) AS  -- whose events a session's log is made of, up to which seq
  SELECT s.name, o.name, l.hi - 1 FROM _session s JOIN _lineage l ON l.session = s.id JOIN _session o ON o.id = l.owner;

CREATE VIEW _landmark(session, owner, part, id, seq, type, time, data) AS  -- everything but chunks, by internal id
  SELECT l.session, l.owner, l.hi, e.id, e.seq, e.type, e.time, e.data
  FROM _lineage l JOIN _event e ON e.session = l.owner AND e.seq < l.hi
  WHERE e.type <> 'assistant/chunk';

-- Every node a session has ever had, and the seq that replaced it there: its writer's, if that is inherited too, else
-- that of a later owner up to the session itself. The unary plus keeps `seq` free for a bound that a query gives.
CREATE VIEW _node(session, owner, seq, ord, event, died) AS
  SELECT l.session, l.owner, v.seq, v.ord, v.event, coalesce(iif(v.died < l.hi, v.died, NULL),
    (SELECT min(d.died) FROM _lineage k JOIN _surface d ON d.session = k.owner AND d.seq = v.seq AND d.died < k.hi
     WHERE k.session = l.session AND k.hi > l.hi))
  FROM _lineage l JOIN _session o ON o.id = l.owner JOIN _surface v ON v.session = l.owner AND v.seq < l.hi
  WHERE +v.seq >= o.start;

-- The nodes of _node that nothing has replaced, each kind by its index: a session's own, and of an ancestor's those that
-- it has still, or replaced after the fork, but for those that a later owner replaced. What was replaced is not read.
CREATE VIEW surface(session_id, position, seq, type, data) AS  -- the nodes the model sees, by position
  SELECT s.name, v.ord, v.seq, e.type, e.data  -- type and data are NULL where the event is gone: a damaged log (PE-32)
  FROM _session s JOIN _surface v ON v.session = s.id AND v.died IS NULL LEFT JOIN _event e ON e.id = v.event
  UNION ALL
  SELECT s.name, v.ord, v.seq, e.type, e.data
  FROM _session s JOIN _lineage l ON l.session = s.id AND l.owner <> s.id JOIN _session o ON o.id = l.owner
    JOIN _surface v ON v.session = l.owner AND v.died IS NULL AND v.seq < l.hi LEFT JOIN _event e ON e.id = v.event
  WHERE +v.seq >= o.start AND NOT EXISTS (
    SELECT 1 FROM _lineage k JOIN _surface d ON d.session = k.owner AND d.seq = v.seq AND d.died < k.hi
    WHERE k.session = s.id AND k.hi > l.hi)
  UNION ALL
  SELECT s.name, v.ord, v.seq, e.type, e.data
  FROM _session s JOIN _lineage l ON l.session = s.id AND l.owner <> s.id JOIN _session o ON o.id = l.owner
    JOIN _surface v ON v.session = l.owner AND v.died >= l.hi AND +v.seq < l.hi LEFT JOIN _event e ON e.id = v.event
  WHERE +v.seq >= o.start AND NOT EXISTS (
    SELECT 1 FROM _lineage k JOIN _surface d ON d.session = k.owner AND d.seq = v.seq AND d.died < k.hi
    WHERE k.session = s.id AND k.hi > l.hi);

CREATE VIEW surface_history(session_id, position, seq, type, replaced_by) AS  -- shadowed nodes too
  SELECT s.name, v.ord, v.seq, e.type, v.died
  FROM _session s JOIN _node v ON v.session = s.id JOIN _event e ON e.id = v.event;

CREATE VIEW message(session_id, position, seq, role, content, provenance) AS  -- SE-20, SE-21
  SELECT session_id, position, seq, iif(type = 'assistant/message', 'assistant', 'user'),
    iif(type = 'tool/result',
      json_array(json_object('type', 'tool-result', 'toolCallId', data -> 'callId', 'content', data -> 'content',
        'isError', data -> 'isError')),
      data -> 'content'),
    iif(type = 'assistant/message', data -> 'provenance', NULL)
  FROM surface WHERE NOT (type = 'assistant/message' AND data -> 'content' = '[]');

CREATE VIEW turn(session_id, turn, start_seq, end_seq, started_at, ended_at, trigger, reason, outcome) AS
  SELECT s.name, b.data ->> 'turn', b.seq, x.seq, b.time, x.time, b.data -> 'trigger', x.data -> 'reason',
    x.data ->> '$.reason.kind'
  FROM _session s JOIN _landmark b ON b.session = s.id AND b.type = 'turn/start'
  LEFT JOIN _event x ON x.session = b.owner AND x.type = 'turn/end' AND x.type <> 'assistant/chunk' AND x.seq =
    (SELECT min(n.seq) FROM _event n
     WHERE n.session = b.owner AND n.type = 'turn/end' AND n.type <> 'assistant/chunk' AND n.seq > b.seq);

CREATE VIEW step(session_id, turn, step, start_seq, end_seq, started_at, ended_at) AS
  SELECT s.name, b.data ->> 'turn', b.data ->> 'step', b.seq, x.seq, b.time, x.time
  FROM _session s JOIN _landmark b ON b.session = s.id AND b.type = 'step/start'
  LEFT JOIN _event x ON x.session = b.owner AND x.type = 'step/end' AND x.type <> 'assistant/chunk' AND x.seq =
    (SELECT min(n.seq) FROM _event n
     WHERE n.session = b.owner AND n.type = 'step/end' AND n.type <> 'assistant/chunk' AND n.seq > b.seq);

CREATE VIEW tool_call(session_id, turn, step, call_id, name, arguments, seq, result_seq, is_error, error_code, content,
    ms) AS  -- a call and its result share a step, and a fork ends at a turn's end, so both have one owner
  SELECT s.name, c.data ->> 'turn', c.data ->> 'step', c.data ->> 'callId', c.data ->> 'name', c.data ->> 'arguments',
    c.seq, r.seq, r.data ->> 'isError', r.data ->> '$.error.code', r.data -> 'content', r.time - c.time
  FROM _session s JOIN _landmark c ON c.session = s.id AND c.type = 'tool/call'
  LEFT JOIN _event r ON r.session = c.owner AND r.type IN ('tool/call', 'tool/result') AND r.type = 'tool/result'
    AND r.data ->> 'callId' = c.data ->> 'callId' AND r.op = '"append"'
    AND r.data ->> 'step' = c.data ->> 'step' AND r.data ->> 'turn' = c.data ->> 'turn';

CREATE VIEW usage(session_id, turn, step, start_seq, provider, model, input_tokens, output_tokens, cache_read_tokens,
    cache_write_tokens, reasoning_tokens, started_at, inherited) AS  -- one row per step that reported (SE-35), failed
  -- attempts too. A fork shows its parent's steps as inherited: sums over several sessions leave those out. A step's
  -- events are those up to its end, all of one owner; of several reports the last counts, as it does for the message.
  SELECT s.name, b.data ->> 'turn', b.data ->> 'step', b.seq,
    -- The header in force is nearly always the owner's own, which the index answers alone; else it is an ancestor's.
    coalesce(
      (SELECT h.data ->> '$.header.config.provider' FROM _event h WHERE h.session = b.owner
         AND h.type = 'request/header' AND h.seq < coalesce(z.seq, 9223372036854775807) ORDER BY h.seq DESC LIMIT 1),
      (SELECT h.data ->> '$.header.config.provider' FROM _landmark h WHERE h.session = s.id
         AND h.type = 'request/header' AND h.seq < b.seq ORDER BY h.seq DESC LIMIT 1)),
    coalesce(
      (SELECT h.data ->> '$.header.config.model' FROM _event h WHERE h.session = b.owner
         AND h.type = 'request/header' AND h.seq < coalesce(z.seq, 9223372036854775807) ORDER BY h.seq DESC LIMIT 1),
      (SELECT h.data ->> '$.header.config.model' FROM _landmark h WHERE h.session = s.id
         AND h.type = 'request/header' AND h.seq < b.seq ORDER BY h.seq DESC LIMIT 1)),
    coalesce(u.data ->> '$.chunk.usage.inputTokens', u.data ->> '$.usage.inputTokens'),
    coalesce(u.data ->> '$.chunk.usage.outputTokens', u.data ->> '$.usage.outputTokens'),
    coalesce(u.data ->> '$.chunk.usage.cacheReadTokens', u.data ->> '$.usage.cacheReadTokens'),
    coalesce(u.data ->> '$.chunk.usage.cacheWriteTokens', u.data ->> '$.usage.cacheWriteTokens'),
    coalesce(u.data ->> '$.chunk.usage.reasoningTokens', u.data ->> '$.usage.reasoningTokens'),
    b.time, b.owner <> s.id
  FROM _session s JOIN _landmark b ON b.session = s.id AND b.type = 'step/start'
  LEFT JOIN _event z ON z.session = b.owner AND z.type = 'step/end' AND z.type <> 'assistant/chunk' AND z.seq =
    (SELECT min(e.seq) FROM _event e
     WHERE e.session = b.owner AND e.type = 'step/end' AND e.type <> 'assistant/chunk' AND e.seq > b.seq)
  JOIN _event u ON u.id = coalesce(
    (SELECT c.id FROM _event c
     WHERE c.session = b.owner AND c.type = 'assistant/chunk' AND c.data ->> '$.chunk.type' = 'usage'
       AND c.seq > b.seq AND c.seq < coalesce(z.seq, 9223372036854775807) ORDER BY c.seq DESC LIMIT 1),
    (SELECT a.id FROM _event a
     WHERE a.session = b.owner AND a.type = 'assistant/message' AND a.type <> 'assistant/chunk'
       AND a.seq > b.seq AND a.seq < coalesce(z.seq, 9223372036854775807) AND json_type(a.data, '$.usage') = 'object'
     ORDER BY a.seq DESC LIMIT 1));

CREATE VIEW request_header(session_id, seq, header, reason) AS
  SELECT s.name, h.seq, h.data -> 'header', h.data ->> 'reason'
  FROM _session s JOIN _landmark h ON h.session = s.id AND h.type = 'request/header';

CREATE VIEW todo(session_id, position, status, content) AS  -- the current list (SE-60)
  SELECT s.name, t.key, iif(t.type = 'object', t.value ->> 'status', NULL), iif(t.type = 'object', t.value ->> 'content', NULL)
  FROM _session s JOIN _landmark w ON w.session = s.id AND w.type = 'todo/write' AND w.seq =
      (SELECT max(n.seq) FROM _landmark n WHERE n.session = s.id AND n.type = 'todo/write')
    JOIN json_each(w.data, '$.todos') t;

-- The last one given, else how the first prompt of a person begins. A log from elsewhere may have anything there; only
-- text is a title.
CREATE VIEW title(session_id, title, origin) AS
  SELECT name, coalesce(given, iif(typeof(prompt) = 'text', substr(prompt, 1, 200), NULL)),
    iif(given IS NULL, 'prompt', 'event')
  FROM (
    SELECT s.name,
      (SELECT t.data ->> 'title' FROM _landmark t WHERE t.session = s.id AND t.type = 'session/title'
         AND json_type(t.data, '$.title') = 'text' ORDER BY t.part DESC, t.seq DESC LIMIT 1) AS given,
      (SELECT coalesce(p.data ->> '$.envelope.displayContent[0].text', p.data ->> '$.content[0].text')
       FROM _landmark p WHERE p.session = s.id AND p.type = 'user/message' AND p.data ->> '$.source.kind' = 'user'
       ORDER BY p.part, p.seq LIMIT 1) AS prompt
    FROM _session s
  );

CREATE VIEW session_title(session_id, title, source, event_seq, updated_at) AS  -- the newest title of each session (ST-73)
  SELECT s.name, t.data ->> 'title', t.data -> 'source', t.seq, t.time
  FROM _session s JOIN _landmark t ON t.session = s.id AND t.type = 'session/title' AND t.seq =
    (SELECT n.seq FROM _landmark n WHERE n.session = s.id AND n.type = 'session/title'
       AND json_type(n.data, '$.title') = 'text' ORDER BY n.part DESC, n.seq DESC LIMIT 1);

CREATE VIEW summary(session_id, title, outcome, model) AS  -- what a list says, each found without reading the log
  SELECT s.name, (SELECT t.title FROM title t WHERE t.session_id = s.name),
    (SELECT (SELECT CAST(x.data ->> '$.reason.kind' AS TEXT) FROM _event x WHERE x.session = b.owner AND x.type = 'turn/end'
               AND x.type <> 'assistant/chunk' AND x.seq > b.seq ORDER BY x.seq LIMIT 1)
     FROM _landmark b WHERE b.session = s.id AND b.type = 'turn/start' AND b.data ->> '$.trigger.kind' IS NOT 'session-title'
     ORDER BY b.part DESC, b.seq DESC LIMIT 1),
    (SELECT h.data ->> '$.header.config.model' FROM _landmark h WHERE h.session = s.id AND h.type = 'request/header'
     ORDER BY h.part DESC, h.seq DESC LIMIT 1)
  FROM _session s;

CREATE VIEW lease(session_id, holder, pid, boot_id, process_start, heartbeat, replaces, since) AS
  SELECT s.name, l.holder, l.pid, l.boot_id, l.process_start, l.heartbeat, NULL, l.since
  FROM _lease l CROSS JOIN _session s ON s.id = l.session;  -- leases first, they are few

CREATE VIEW activity(session_id, turn, turn_started_at, last_type, last_chunk, call_name, call_arguments) AS
  -- what is done in each open turn, from its last events: one seek each, as an open turn is never inherited
  SELECT s.name, s.open_turn,
    (SELECT e.time FROM _event e WHERE e.session = s.id AND e.type = 'turn/start' AND e.type <> 'assistant/chunk'
     ORDER BY e.seq DESC LIMIT 1),
    (SELECT e.type FROM _event e WHERE e.session = s.id ORDER BY e.seq DESC LIMIT 1),
    (SELECT iif(e.type = 'assistant/chunk', e.data ->> '$.chunk.type', NULL) FROM _event e WHERE e.session = s.id
     ORDER BY e.seq DESC LIMIT 1),
    (SELECT c.data ->> 'name' FROM _event c WHERE c.session = s.id AND c.type = 'tool/call'
       AND c.type <> 'assistant/chunk' ORDER BY c.seq DESC LIMIT 1),
    (SELECT c.data ->> 'arguments' FROM _event c WHERE c.session = s.id AND c.type = 'tool/call'
       AND c.type <> 'assistant/chunk' ORDER BY c.seq DESC LIMIT 1)
  FROM _session s WHERE s.open_turn IS NOT NULL;

CREATE VIEW inbox(position, session_id, message_id, route, content, source, contexts, meta, sent_at) AS
  SELECT i.id, s.name, i.message, i.route, i.content, i.source, i.contexts, i.meta, i.sent_at
  FROM _inbox i JOIN _session s ON s.id = i.session;

CREATE VIEW setting(key, value) AS SELECT key, value FROM _setting;

CREATE VIEW cache(key, value) AS SELECT key, value FROM _cache;

CREATE VIEW trusted_folder(folder, trusted_at) AS SELECT folder, trusted_at FROM _trust;

CREATE VIEW migration(id, name, applied_at, program) AS SELECT id, name, applied_at, program FROM _migration;

CREATE VIEW import_source(tool, path, stamp, state, imported_at) AS SELECT tool, path, stamp, state, imported_at FROM _import;

CREATE VIEW saved_query(name, sql, about, saved_at) AS SELECT name, sql, about, saved_at FROM _query;

-- Two states of the history differ in last_event or in generation.
CREATE VIEW store(store_id, schema_version, sessions, search_indexed, last_event, generation) AS
  SELECT store_id, (SELECT max(id) FROM _migration), (SELECT count(*) FROM _session), indexed,
    (SELECT coalesce(max(id), 0) FROM _event), generation
  FROM _store;

CREATE VIEW rebuild(session_id) AS SELECT NULL WHERE false;  -- never has rows; takes what is to be derived anew (PE-79)
CREATE VIEW _placed(session, seq, op, id) AS  -- never has rows; takes events that join the surface
  SELECT session, seq, op, id FROM _event WHERE false;

------------------------------------------------------------------------------------------ full-text search

CREATE VIEW search_document(id, session_id, seq, type, time, text) AS  -- what an event says to a person (SQ-40, SQ-41)
  SELECT * FROM (SELECT e.id, s.name, e.seq, e.type, e.time,
    (SELECT group_concat(part, char(10)) FROM (
      SELECT trim(part, char(9, 10, 11, 12, 13, 32)) AS part FROM (
        -- Only text counts, whatever else a field may hold: hence fields by json_each, which tells their type. The
        -- first two columns are the order: block, part of the block.
        SELECT b.key AS block, f.key = 'arguments' AS place, f.atom AS part
        FROM json_each(e.data, '$.content') b JOIN json_each(iif(b.type = 'object', b.value, '{}')) f
        WHERE f.type = 'text' AND (iif(b.type = 'object', b.value ->> 'type', ''), f.key) IN
          (VALUES ('text', 'text'), ('reasoning', 'text'), ('tool-call', 'name'), ('tool-call', 'arguments'))
        UNION ALL
        SELECT b.key, 2 * n.key + (f.key = 'arguments'), f.atom
        FROM json_each(e.data, '$.content') b
          JOIN json_each(iif(b.type = 'object' AND iif(b.type = 'object', b.value ->> 'type', '') = 'tool-result',
            b.value, '{}'), '$.content') n
          JOIN json_each(iif(n.type = 'object', n.value, '{}')) f
        WHERE f.type = 'text' AND (iif(n.type = 'object', n.value ->> 'type', ''), f.key) IN
          (VALUES ('text', 'text'), ('reasoning', 'text'), ('tool-call', 'name'), ('tool-call', 'arguments'))
        UNION ALL
        SELECT 1e9 + t.key, f.key = 'content', f.atom
        FROM json_each(e.data, '$.todos') t JOIN json_each(iif(t.type = 'object', t.value, '{}')) f
        WHERE e.type = 'todo/write' AND f.type = 'text' AND f.key IN ('status', 'content')
        UNION ALL
        SELECT 1e9, f.key IN ('arguments', 'code'), f.atom
        FROM json_each(e.data, iif(e.type = 'tool/result', '$.error', '$')) f
        WHERE f.type = 'text' AND (e.type, f.key) IN (VALUES ('tool/call', 'name'), ('tool/call', 'arguments'),
          ('prompt/blocked', 'reason'), ('tool/result', 'name'), ('tool/result', 'code'))
        UNION ALL
        SELECT 1e9, 0, e.data ->> '$.reason.kind' WHERE e.type = 'turn/end' AND e.data ->> '$.reason.kind' IN
          ('error', 'rejected', 'aborted', 'disposed', 'max-tokens', 'interrupted')
        UNION ALL
        SELECT 1e9, 1 + (f.key = 'code'), f.atom
        FROM json_each(e.data, iif(e.data ->> '$.reason.kind' = 'error' AND
          json_type(e.data, '$.reason.failure') = 'object', '$.reason.failure', '$.reason')) f
        WHERE e.type = 'turn/end' AND f.type = 'text' AND (e.data ->> '$.reason.kind', f.key) IN
          (VALUES ('error', 'message'), ('error', 'code'), ('rejected', 'reason'))
      ) ORDER BY block, place
    ) WHERE part <> '') AS text
  FROM _event e JOIN _session s ON s.id = e.session
  WHERE e.type <> 'assistant/chunk' AND e.type IN ('user/message', 'assistant/message', 'steering/message',
    'prompt/blocked', 'tool/call', 'tool/result', 'todo/write', 'turn/end')) WHERE text IS NOT NULL;

-- What the index reads back: FTS5 prepares this without virtual tables, so no json_each here; `segment` extracts the
-- text itself, puts spaces between CJK characters and adds the words of camelCase names.
CREATE VIEW _search_source(id, text, tags) AS
  SELECT e.id, segment(e.type, e.data), search_tags(e.type, e.data, s.name, s.cwd, s.source)
  FROM _event e JOIN _session s ON s.id = e.session
  WHERE e.type <> 'assistant/chunk' AND e.type IN ('user/message', 'assistant/message', 'steering/message',
    'prompt/blocked', 'tool/call', 'tool/result', 'todo/write', 'turn/end');
CREATE VIRTUAL TABLE search USING fts5(text, tags, content = '_search_source', content_rowid = 'id',
  tokenize = 'unicode61');
-- The indexed words and how many documents have each: `conf*` is looked up here, a tenth of what FTS5 takes to merge
-- the lists of every word that begins so.
CREATE VIRTUAL TABLE search_word USING fts5vocab(search, row);

-------------------------------------------------------------------------------------------------- 3. rules

---------------------------------------------------------------------------------- creating and deleting sessions

CREATE TRIGGER session_insert INSTEAD OF INSERT ON session BEGIN
  SELECT RAISE(ABORT, 'HEADER_INVALID') WHERE                                                         -- SE-53, PE-2
    typeof(new.id) <> 'text' OR new.id = '' OR coalesce(new.version, 0) IS NOT 0
    OR (new.created_at IS NOT NULL
        AND (typeof(new.created_at) <> 'integer' OR new.created_at NOT BETWEEN 0 AND 9007199254740991))
    OR (new.cwd IS NOT NULL AND NOT (typeof(new.cwd) = 'text' AND (new.cwd GLOB '/*' OR new.cwd GLOB '[A-Za-z]:*')))
    OR (new.parent_session IS NOT NULL AND (typeof(new.parent_session) <> 'text' OR new.parent_session = ''))
    OR (new.seed_length IS NOT NULL AND (typeof(new.seed_length) <> 'integer' OR new.seed_length < 0))
    OR (new.delegation_depth IS NOT NULL AND (typeof(new.delegation_depth) <> 'integer' OR new.delegation_depth < 0))
    OR (new.source IS NOT NULL AND (typeof(new.source) <> 'text' OR new.source = ''))
    OR (new.incarnation IS NOT NULL AND (typeof(new.incarnation) <> 'text' OR new.incarnation = ''));
  SELECT RAISE(ABORT, 'SESSION_ALREADY_EXISTS') WHERE EXISTS (SELECT 1 FROM _session WHERE name = new.id);
  INSERT INTO _session(name, created_at, cwd, parent, seed_length, delegation_depth, incarnation, updated_at, source)
    SELECT new.id, t.at, new.cwd, new.parent_session, new.seed_length, coalesce(new.delegation_depth, 0),
      coalesce(new.incarnation, lower(hex(randomblob(16)))), t.at, new.source
    FROM (SELECT coalesce(new.created_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) AS at) t;
  INSERT INTO _lineage SELECT id, 9223372036854775807, id FROM _session WHERE name = new.id;
END;

CREATE TRIGGER fork_insert INSTEAD OF INSERT ON fork BEGIN                                            -- SE-55, SE-56
  SELECT RAISE(ABORT, 'HEADER_INVALID') WHERE typeof(new.id) <> 'text' OR new.id = ''
    OR (new.created_at IS NOT NULL
        AND (typeof(new.created_at) <> 'integer' OR new.created_at NOT BETWEEN 0 AND 9007199254740991))
    OR (new.cwd IS NOT NULL AND NOT (typeof(new.cwd) = 'text' AND (new.cwd GLOB '/*' OR new.cwd GLOB '[A-Za-z]:*')));
  SELECT RAISE(ABORT, 'SESSION_ALREADY_EXISTS') WHERE EXISTS (SELECT 1 FROM _session WHERE name = new.id);
  SELECT RAISE(ABORT, 'SESSION_NOT_FOUND') WHERE NOT EXISTS (SELECT 1 FROM _session WHERE name = new.parent_session);
  SELECT RAISE(ABORT, 'INVALID_BOUNDARY') WHERE typeof(new.boundary) <> 'integer'
    OR NOT EXISTS (SELECT 1 FROM event WHERE session_id = new.parent_session AND seq = new.boundary);
  SELECT RAISE(ABORT, 'OPEN_TURN') WHERE NOT EXISTS
    (SELECT 1 FROM event WHERE session_id = new.parent_session AND seq = new.boundary AND type = 'turn/end');
  INSERT INTO _session(name, created_at, cwd, parent, seed_length, delegation_depth, incarnation, start, turns,
      generation, updated_at)
    SELECT new.id, coalesce(new.created_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
      coalesce(new.cwd, p.cwd), p.name, new.boundary + 1, 0, lower(hex(randomblob(16))), new.boundary + 1,
      b.data ->> 'turn', 0, b.time
    FROM _session p JOIN event b ON b.session_id = p.name AND b.seq = new.boundary WHERE p.name = new.parent_session;
  -- Owners are taken over as far as they reach below the boundary. An owner's own events begin where the ancestor
  -- before it ends, so the first lineage row whose hi passes the boundary is the boundary's writer, cut there.
  INSERT INTO _lineage SELECT c.id, min(l.hi, new.boundary + 1), l.owner
    FROM _session c, _session p JOIN _lineage l ON l.session = p.id
    WHERE c.name = new.id AND p.name = new.parent_session
      AND coalesce((SELECT max(e.hi) FROM _lineage e WHERE e.session = l.session AND e.hi < l.hi), 0) <= new.boundary;
  INSERT INTO _lineage SELECT id, 9223372036854775807, id FROM _session WHERE name = new.id;
  -- Of the writer's replacements those count that the child sees too; a replacement is a node not in its own place.
  UPDATE _session SET generation =
      (SELECT w.generation - (SELECT count(*) FROM _surface v
                              WHERE v.session = w.id AND v.seq > new.boundary AND v.ord <> v.seq)
       FROM _lineage l JOIN _session w ON w.id = l.owner WHERE l.session = _session.id AND l.hi = new.boundary + 1)
    WHERE name = new.id;
END;

CREATE TRIGGER session_update INSTEAD OF UPDATE ON session BEGIN               -- the user's marks may change, no more
  SELECT RAISE(ABORT, 'SESSION_IMMUTABLE') WHERE
    (new.id, new.version, new.created_at, new.cwd, new.parent_session, new.seed_length, new.delegation_depth,
      new.incarnation, new.revision, new.length, new.replace_generation, new.turns, new.steps, new.open_turn,
      new.open_step, new.updated_at, new.source) IS NOT
    (old.id, old.version, old.created_at, old.cwd, old.parent_session, old.seed_length, old.delegation_depth,
      old.incarnation, old.revision, old.length, old.replace_generation, old.turns, old.steps, old.open_turn,
      old.open_step, old.updated_at, old.source)
    OR typeof(new.pinned) NOT IN ('null', 'integer') OR typeof(new.hidden) NOT IN ('null', 'integer');
  UPDATE _session SET pinned = new.pinned, hidden = new.hidden WHERE name = old.id;
  UPDATE _store SET generation = generation + 1 WHERE new.hidden IS NOT old.hidden;
END;

CREATE TRIGGER session_delete INSTEAD OF DELETE ON session BEGIN
  SELECT RAISE(ABORT, 'SESSION_LEASED') FROM _lease l JOIN _session s ON s.id = l.session WHERE s.name = old.id;
  SELECT RAISE(ABORT, 'SESSION_HAS_FORKS') FROM _session s JOIN _lineage l ON l.owner = s.id AND l.session <> s.id
    WHERE s.name = old.id;
  INSERT INTO search(search, rowid, text, tags) SELECT 'delete', d.id, d.text, d.tags FROM _search_source d
    WHERE d.id IN (SELECT e.id FROM _event e JOIN _session s ON s.id = e.session JOIN _store t
                   WHERE s.name = old.id AND e.id <= t.indexed);
  DELETE FROM _inbox WHERE session = (SELECT id FROM _session WHERE name = old.id);
  DELETE FROM _surface WHERE session = (SELECT id FROM _session WHERE name = old.id);
  DELETE FROM _lineage WHERE session = (SELECT id FROM _session WHERE name = old.id);
  UPDATE _session SET start = -1 WHERE name = old.id;                       -- lets the guard below pass
  DELETE FROM _event WHERE session = (SELECT id FROM _session WHERE name = old.id);
  DELETE FROM _session WHERE name = old.id;
  UPDATE _store SET generation = generation + 1,
    indexed = min(indexed, (SELECT coalesce(max(id), 0) FROM _event));      -- ids above it may come again
END;

------------------------------------------------------------------------------------------------------ appending

-- A driven session takes events from the holder of its lease alone, one that nobody drives from anybody: a driver that
-- was put aside is told at its next write, whatever the new one has written by then.
CREATE TRIGGER driver_event_insert INSTEAD OF INSERT ON driver_event BEGIN
  SELECT RAISE(ABORT, 'SESSION_NOT_FOUND') WHERE NOT EXISTS (SELECT 1 FROM _session WHERE name = new.session_id);
  SELECT RAISE(ABORT, 'SESSION_LEASED') FROM _session s WHERE s.name = new.session_id
    AND new.holder IS NOT (SELECT l.holder FROM _lease l WHERE l.session = s.id);
  INSERT INTO _event(session, seq, type, time, data, source, op)
    SELECT id, coalesce(new.seq, (SELECT l.length FROM _length l WHERE l.session = id)), new.type,
      coalesce(new.time, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)), new.data,
      new.source_event_seqs, new.surface_op
    FROM _session WHERE name = new.session_id;
END;
CREATE TRIGGER event_insert INSTEAD OF INSERT ON event BEGIN
  INSERT INTO driver_event(holder, session_id, seq, type, time, data, source_event_seqs, surface_op)
    VALUES (NULL, new.session_id, new.seq, new.type, new.time, new.data, new.source_event_seqs, new.surface_op);
END;
CREATE TRIGGER event_update INSTEAD OF UPDATE ON event BEGIN SELECT RAISE(ABORT, 'EVENT_IMMUTABLE'); END;
CREATE TRIGGER event_delete INSTEAD OF DELETE ON event BEGIN SELECT RAISE(ABORT, 'EVENT_IMMUTABLE'); END;

-- The checks stand on the table itself, so that no way of inserting goes round them. They are two triggers, not nine:
-- asking each of nine for its WHEN made an append a tenth slower. SQLite runs the triggers of a moment from the last
-- created to the first, so what every event must obey stands last and is asked first.

CREATE TRIGGER _event_kinds BEFORE INSERT ON _event WHEN new.type <> 'assistant/chunk' BEGIN
  SELECT RAISE(ABORT, 'SURFACE_INVALID') WHERE new.op <> '"append"' AND (                                       -- SE-12
    json_valid(new.op) IS NOT 1 OR json_type(new.op) <> 'object'
    OR (SELECT count(*) FROM json_each(new.op)) <> 3 OR new.op ->> 'op' IS NOT 'replace'
    OR json_type(new.op, '$.start') IS NOT 'integer' OR json_type(new.op, '$.end') IS NOT 'integer');
  SELECT RAISE(ABORT, 'SURFACE_INVALID') WHERE new.op IS NOT NULL AND (             -- SE-5: a list of blocks, or no message
    json_type(new.data, '$.content') IS NOT 'array'
    OR EXISTS (SELECT 1 FROM (SELECT iif(type = 'object', value, '{}') AS block FROM json_each(new.data, '$.content'))
      WHERE CASE block ->> 'type' WHEN 'text' THEN json_type(block, '$.text')
        WHEN 'reasoning' THEN json_type(block, '$.text')
        WHEN 'tool-call' THEN iif(json_type(block, '$.id') = 'text' AND json_type(block, '$.name') = 'text',
          json_type(block, '$.arguments'), NULL)
        WHEN 'tool-result' THEN iif(json_type(block, '$.content') = 'array', json_type(block, '$.toolCallId'), NULL)
        ELSE json_type(block, '$.type') END IS NOT 'text'));
  SELECT RAISE(ABORT, 'SURFACE_INVALID') WHERE new.source IS NOT NULL AND (                                     -- SE-13
    json_valid(new.source) IS NOT 1 OR json_type(new.source) <> 'array'
    OR (json_array_length(new.source) = 0 AND new.type <> 'assistant/message'));
  SELECT RAISE(ABORT, 'SURFACE_INVALID') FROM (
    SELECT count(*) <> count(DISTINCT j.value) AS repeats, total(j.type <> 'integer' OR j.value < 0 OR j.value >= new.seq) AS bad
    FROM json_each(new.source) j) WHERE repeats OR bad;
  SELECT RAISE(ABORT, 'INVARIANT') WHERE new.type = 'tool/result' AND new.op = '"append"'                       -- SE-44
    AND new.data ->> '$.error.code' IS NOT 'TOOL_NOT_STARTED' AND NOT EXISTS (
      SELECT 1 FROM _event c WHERE c.session = new.session AND c.type IN ('tool/call', 'tool/result') AND c.type = 'tool/call'
        AND c.data ->> 'callId' = new.data ->> 'callId' AND c.data ->> 'step' = new.data ->> 'step'
        AND c.data ->> 'turn' = new.data ->> 'turn');
  SELECT RAISE(ABORT, 'INVARIANT') WHERE new.type = 'turn/end' AND new.data ->> '$.reason.kind' = 'aborted'     -- SE-51
    AND new.data -> 'reason' <> '{"kind":"aborted"}';
  SELECT RAISE(ABORT, 'INVARIANT') WHERE new.type = 'assistant/message' AND (                                   -- SE-51
    json_type(new.data, '$.provenance.provider') IS NOT 'text' OR json_type(new.data, '$.provenance.model') IS NOT 'text'
    OR new.data ->> '$.provenance.provider' = '' OR new.data ->> '$.provenance.model' = '');
  SELECT RAISE(ABORT, 'HEADER_INVALID') WHERE new.type = 'request/header' AND (                                 -- SE-51
    coalesce(new.data ->> '$.header.config.provider', '') = ''
    OR coalesce(new.data ->> '$.header.config.model', '') = '' OR new.data ->> '$.header.config.reasoningEffort' = ''
    OR json_type(new.data, '$.header.config.provider') <> 'text' OR json_type(new.data, '$.header.config.model') <> 'text'
    OR json_type(new.data, '$.header.config.reasoningEffort') <> 'text');
  SELECT RAISE(ABORT, 'LEGACY_EVENT') WHERE new.type IN ('request/header-delta', 'mode/set')                    -- SE-9
    OR (new.type = 'request/header' AND new.data ->> 'reason' = 'fallback');
END;

-- The id test is for INSERT OR REPLACE, which deletes the row in its way without firing a DELETE trigger. An id that
-- SQLite is left to choose is -1 here; nobody may choose one like it (_event_appended).
CREATE TRIGGER _event_rules BEFORE INSERT ON _event BEGIN
  SELECT RAISE(ABORT, 'SEQ_MISMATCH') WHERE new.seq IS NOT (SELECT length FROM _length WHERE session = new.session)  -- PE-3
    OR (new.id > 0 AND EXISTS (SELECT 1 FROM _event WHERE id = new.id));
  SELECT RAISE(ABORT, 'EVENT_NOT_JSON') WHERE json_valid(new.data) IS NOT 1 OR new.type = '' OR new.time < 0;    -- SE-2
  SELECT RAISE(ABORT, 'SURFACE_INVALID') WHERE                                                                   -- SE-5
    (new.type IN ('user/message', 'assistant/message', 'tool/result', 'steering/message')) IS NOT (new.op IS NOT NULL)
    OR (new.op IS NULL AND new.source IS NOT NULL);
  -- Numbers are compared as JSON text: as values, 1 would equal "1" and true.
  SELECT RAISE(ABORT, 'INVARIANT') FROM _session s WHERE s.id = new.session AND NOT CASE          -- SE-40 to 43, SE-46
    WHEN new.type = 'assistant/chunk' OR new.type IN ('assistant/message', 'tool/call', 'step/end')
        OR (new.type = 'tool/result' AND new.op = '"append"')
      THEN s.open_step IS NOT NULL
        AND new.data -> 'turn' IS (s.open_turn || '') AND new.data -> 'step' IS (s.open_step || '')
    WHEN new.type = 'turn/start' THEN s.open_turn IS NULL AND new.data -> 'turn' IS ((s.turns + 1) || '')
    WHEN new.type = 'turn/end'
      THEN s.open_turn IS NOT NULL AND s.open_step IS NULL AND new.data -> 'turn' IS (s.open_turn || '')
    WHEN new.type = 'step/start'
      THEN s.open_turn IS NOT NULL AND s.open_step IS NULL
        AND new.data -> 'turn' IS (s.open_turn || '') AND new.data -> 'step' IS ((s.steps + 1) || '')
    ELSE s.open_turn IS NOT NULL END;
END;

CREATE TRIGGER _event_immutable BEFORE UPDATE ON _event BEGIN SELECT RAISE(ABORT, 'EVENT_IMMUTABLE'); END;
CREATE TRIGGER _event_kept BEFORE DELETE ON _event BEGIN
  SELECT RAISE(ABORT, 'EVENT_IMMUTABLE') FROM _session WHERE id = old.session AND start >= 0; END;

-- A session's own nodes are found by index; for those it inherited its lineage is read from the first removed on, since
-- no node's place (ord) is later than its seq. What is removed gets its `died`, an inherited node in a row of its own.
CREATE TRIGGER _placed_insert INSTEAD OF INSERT ON _placed BEGIN
  INSERT INTO _surface(session, seq, ord, event, died)
    SELECT new.session, v.seq, v.ord, v.event, new.seq
    FROM (SELECT (SELECT ord FROM _node WHERE session = new.session AND seq = new.op ->> 'start') AS low,
            (SELECT ord FROM _node WHERE session = new.session AND seq = new.op ->> 'end') AS high) r
      CROSS JOIN _node v ON v.session = new.session AND v.owner <> new.session AND v.seq >= r.low
    WHERE new.op <> '"append"' AND v.died IS NULL AND v.ord BETWEEN r.low AND r.high;
  UPDATE _surface SET died = new.seq WHERE new.op <> '"append"' AND session = new.session AND died IS NULL
    AND ord >= (SELECT ord FROM _node WHERE session = new.session AND seq = new.op ->> 'start')
    AND ord <= (SELECT ord FROM _node WHERE session = new.session AND seq = new.op ->> 'end');
  SELECT RAISE(ABORT, 'SURFACE_INVALID') WHERE new.op <> '"append"'
    AND NOT EXISTS (SELECT 1 FROM _surface WHERE session = new.session AND died = new.seq);
  INSERT INTO _surface(session, seq, ord, event) VALUES (new.session, new.seq,
    iif(new.op = '"append"', new.seq, (SELECT ord FROM _node WHERE session = new.session AND seq = new.op ->> 'start')),
    new.id);
END;
CREATE TRIGGER _event_replaced AFTER INSERT ON _event WHEN new.op <> '"append"' BEGIN
  SELECT RAISE(ABORT, 'SURFACE_INVALID') WHERE (                                                          -- SE-11, SE-12
    (SELECT ord FROM _node WHERE session = new.session AND seq = new.op ->> 'start' AND died IS NULL)
    <= (SELECT ord FROM _node WHERE session = new.session AND seq = new.op ->> 'end' AND died IS NULL)) IS NOT 1;
  SELECT RAISE(ABORT, 'SURFACE_INVALID') FROM _event e WHERE new.type = 'tool/result'                           -- SE-15
    AND e.id = (SELECT event FROM _node WHERE session = new.session AND seq = new.op ->> 'start')
    AND (e.type <> 'tool/result' OR new.op ->> 'start' <> new.op ->> 'end'
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(json_remove(e.data, '$.content'))
                 EXCEPT SELECT fullkey, type, atom FROM json_tree(json_remove(new.data, '$.content')))
      OR EXISTS (SELECT fullkey, type, atom FROM json_tree(json_remove(new.data, '$.content'))
                 EXCEPT SELECT fullkey, type, atom FROM json_tree(json_remove(e.data, '$.content'))));
  INSERT INTO _placed VALUES (new.session, new.seq, new.op, new.id);
  SELECT RAISE(ABORT, 'SURFACE_INVALID') FROM _surface WHERE session = new.session AND died = new.seq           -- SE-14
    AND seq NOT IN (SELECT value FROM json_each(coalesce(new.source, '[]')));
  UPDATE _session SET generation = generation + 1 WHERE id = new.session;                                       -- SE-16
END;
CREATE TRIGGER _event_appended AFTER INSERT ON _event BEGIN
  SELECT RAISE(ABORT, 'SEQ_MISMATCH') WHERE new.id < 1;
  INSERT INTO _surface(session, seq, ord, event)                                                                -- SE-10
    SELECT new.session, new.seq, new.seq, new.id WHERE new.op = '"append"';
  UPDATE _session SET updated_at = new.time,
    turns = turns + (new.type = 'turn/start'),
    steps = CASE new.type WHEN 'turn/start' THEN 0 WHEN 'step/start' THEN steps + 1 ELSE steps END,
    open_turn = CASE new.type WHEN 'turn/start' THEN turns + 1 WHEN 'turn/end' THEN NULL ELSE open_turn END,
    open_step = CASE new.type WHEN 'step/start' THEN steps + 1 WHEN 'step/end' THEN NULL ELSE open_step END
  WHERE id = new.session AND new.type IN ('turn/start', 'turn/end', 'step/start', 'step/end');
END;

---------------------------------------------------------------------------------- leases, inbox, settings, index

CREATE TRIGGER lease_insert INSTEAD OF INSERT ON lease BEGIN                        -- claim, take over, heartbeat (PE-73)
  SELECT RAISE(ABORT, 'SESSION_NOT_FOUND') WHERE NOT EXISTS (SELECT 1 FROM _session WHERE name = new.session_id);
  SELECT RAISE(ABORT, 'SESSION_LEASED') FROM _lease l JOIN _session s ON s.id = l.session
    WHERE s.name = new.session_id AND l.holder <> new.holder AND l.holder IS NOT new.replaces;
  INSERT OR REPLACE INTO _lease(session, holder, pid, boot_id, process_start, heartbeat, since)
    SELECT id, new.holder, new.pid, new.boot_id, new.process_start, new.heartbeat,
      coalesce((SELECT l.since FROM _lease l WHERE l.session = s.id AND l.holder = new.holder), new.heartbeat)
    FROM _session s WHERE s.name = new.session_id;
END;
CREATE TRIGGER lease_update INSTEAD OF UPDATE ON lease BEGIN SELECT RAISE(ABORT, 'SESSION_LEASED'); END;
CREATE TRIGGER lease_delete INSTEAD OF DELETE ON lease BEGIN
  DELETE FROM _lease WHERE holder = old.holder AND session = (SELECT id FROM _session WHERE name = old.session_id);
END;

-- Anybody may leave a message; it is its session's driver that takes it, in the transaction of the event it becomes.
CREATE TRIGGER inbox_insert INSTEAD OF INSERT ON inbox BEGIN
  SELECT RAISE(ABORT, 'SESSION_NOT_FOUND') WHERE NOT EXISTS (SELECT 1 FROM _session WHERE name = new.session_id);
  SELECT RAISE(ABORT, 'INPUT_INVALID') WHERE typeof(new.message_id) <> 'text' OR new.message_id = ''                 -- AL-9
    OR new.route IS NULL OR new.route NOT IN ('followup', 'queue', 'steer', 'inject', 'cancel')
    OR (new.route IN ('inject', 'cancel') AND coalesce(new.contexts, '[]') <> '[]');
  SELECT RAISE(ABORT, 'INPUT_NOT_JSON') WHERE json_valid(new.content) IS NOT 1 OR json_valid(new.source) IS NOT 1    -- AL-1
    OR json_valid(coalesce(new.contexts, '[]')) IS NOT 1 OR json_valid(coalesce(new.meta, 'null')) IS NOT 1;
  SELECT RAISE(ABORT, 'INPUT_INVALID') WHERE json_type(new.content) <> 'array'
    OR json_type(new.source, '$.kind') IS NOT 'text' OR json_type(coalesce(new.contexts, '[]')) <> 'array'
    OR EXISTS (SELECT 1 FROM json_each(new.content) b
               WHERE b.type <> 'object' OR json_type(iif(b.type = 'object', b.value, '{}'), '$.type') IS NOT 'text')
    OR EXISTS (SELECT 1 FROM json_each(coalesce(new.contexts, '[]')) c
               WHERE c.type <> 'object' OR json_type(iif(c.type = 'object', c.value, '{}'), '$.content') IS NOT 'array'
                 OR json_type(iif(c.type = 'object', c.value, '{}'), '$.source.kind') IS NOT 'text');
  INSERT INTO _inbox(session, message, route, content, source, contexts, meta, sent_at)
    SELECT id, new.message_id, new.route, new.content, new.source, coalesce(new.contexts, '[]'), new.meta,
      coalesce(new.sent_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
    FROM _session WHERE name = new.session_id;
END;
CREATE TRIGGER inbox_update INSTEAD OF UPDATE ON inbox BEGIN SELECT RAISE(ABORT, 'INPUT_INVALID'); END;
CREATE TRIGGER inbox_delete INSTEAD OF DELETE ON inbox BEGIN DELETE FROM _inbox WHERE id = old.position; END;

CREATE TRIGGER setting_insert INSTEAD OF INSERT ON setting BEGIN
  INSERT OR REPLACE INTO _setting VALUES (new.key, new.value);
END;
CREATE TRIGGER setting_delete INSTEAD OF DELETE ON setting BEGIN DELETE FROM _setting WHERE key = old.key; END;

CREATE TRIGGER cache_insert INSTEAD OF INSERT ON cache BEGIN
  INSERT OR REPLACE INTO _cache VALUES (new.key, new.value);
END;
CREATE TRIGGER cache_delete INSTEAD OF DELETE ON cache BEGIN DELETE FROM _cache WHERE key = old.key; END;

CREATE TRIGGER trusted_folder_insert INSTEAD OF INSERT ON trusted_folder BEGIN
  INSERT OR IGNORE INTO _trust VALUES (new.folder, new.trusted_at);
END;
CREATE TRIGGER trusted_folder_delete INSTEAD OF DELETE ON trusted_folder BEGIN
  DELETE FROM _trust WHERE folder = old.folder;
END;

CREATE TRIGGER import_source_insert INSTEAD OF INSERT ON import_source BEGIN
  INSERT OR REPLACE INTO _import VALUES (new.tool, new.path, new.stamp, new.state, new.imported_at);
END;
CREATE TRIGGER import_source_delete INSTEAD OF DELETE ON import_source BEGIN
  DELETE FROM _import WHERE tool = old.tool AND path = old.path;
END;

CREATE TRIGGER saved_query_insert INSTEAD OF INSERT ON saved_query BEGIN
  INSERT OR REPLACE INTO _query VALUES (new.name, new.sql, new.about, new.saved_at);
END;
CREATE TRIGGER saved_query_delete INSTEAD OF DELETE ON saved_query BEGIN DELETE FROM _query WHERE name = old.name; END;

-- What the triggers of _event have kept of a session, from its events again; with NULL the index is emptied, and follows
-- the log from its beginning. A fork reads its parent's surface, so parents come first.
CREATE TRIGGER rebuild_insert INSTEAD OF INSERT ON rebuild WHEN new.session_id IS NOT NULL BEGIN
  SELECT RAISE(ABORT, 'SESSION_NOT_FOUND') WHERE NOT EXISTS (SELECT 1 FROM _session WHERE name = new.session_id);
  DELETE FROM _surface WHERE session = (SELECT id FROM _session WHERE name = new.session_id);
  INSERT INTO _placed SELECT e.session, e.seq, e.op, e.id FROM _event e
    WHERE e.session = (SELECT id FROM _session WHERE name = new.session_id) AND e.op IS NOT NULL
      AND e.type <> 'assistant/chunk' ORDER BY e.seq;
  UPDATE _session SET
    generation =
      coalesce((SELECT w.generation - (SELECT count(*) FROM _surface v
                                       WHERE v.session = w.id AND v.seq >= _session.start AND v.ord <> v.seq)
                FROM _lineage l JOIN _session w ON w.id = l.owner
                WHERE l.session = _session.id AND l.hi = _session.start), 0)
      + (SELECT count(*) FROM _surface v WHERE v.session = _session.id AND v.seq >= start AND v.ord <> v.seq),
    turns =
      coalesce((SELECT b.data ->> 'turn' FROM _landmark b WHERE b.session = _session.id AND b.seq = start - 1), 0)
      + (SELECT count(*) FROM _event e
         WHERE e.session = _session.id AND e.type = 'turn/start' AND e.type <> 'assistant/chunk'),
    steps = (SELECT count(*) FROM _event e
             WHERE e.session = _session.id AND e.type = 'step/start' AND e.type <> 'assistant/chunk' AND e.seq >
               coalesce((SELECT max(t.seq) FROM _event t WHERE t.session = _session.id AND t.type = 'turn/start'
                           AND t.type <> 'assistant/chunk'), -1)),
    open_turn = NULL, open_step = NULL,
    updated_at = coalesce(
      (SELECT e.time FROM _event e WHERE e.session = _session.id AND e.type <> 'assistant/chunk'
         AND e.type IN ('turn/start', 'turn/end', 'step/start', 'step/end') ORDER BY e.seq DESC LIMIT 1),
      (SELECT b.time FROM _landmark b WHERE b.session = _session.id AND b.seq = start - 1), created_at)
  WHERE name = new.session_id;
  UPDATE _session SET
    open_turn = iif('turn/start' = (SELECT e.type FROM _event e WHERE e.session = _session.id
      AND e.type <> 'assistant/chunk' AND e.type IN ('turn/start', 'turn/end') ORDER BY e.seq DESC LIMIT 1), turns, NULL),
    open_step = iif('step/start' = (SELECT e.type FROM _event e WHERE e.session = _session.id
      AND e.type <> 'assistant/chunk' AND e.type IN ('step/start', 'step/end') ORDER BY e.seq DESC LIMIT 1), steps, NULL)
  WHERE name = new.session_id;
END;
CREATE TRIGGER rebuild_index INSTEAD OF INSERT ON rebuild WHEN new.session_id IS NULL BEGIN
  INSERT INTO search(search) VALUES ('delete-all');
  UPDATE _store SET indexed = 0;
END;

-- Indexing follows the log by watermark, at the end of each turn and before each search: a document costs 12 us there
-- against several times that inside the append, a stock shell can append, and a missed run repairs itself.
CREATE TRIGGER store_update INSTEAD OF UPDATE OF search_indexed ON store BEGIN
  INSERT INTO search(rowid, text, tags) SELECT id, text, tags FROM _search_source
    WHERE id > (SELECT indexed FROM _store) AND id <= new.search_indexed;
  UPDATE _store SET indexed = max(indexed, min(new.search_indexed, (SELECT coalesce(max(id), 0) FROM _event)));
END;
