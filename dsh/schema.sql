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
  index_version INTEGER NOT NULL DEFAULT 0,  -- of the functions that `search` was made with
  generation INTEGER NOT NULL DEFAULT 0, -- rises with each change of the history that is no append
  rewriting INTEGER                   -- the session whose events are being packed, thinned or redacted, inside that trigger
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
  source TEXT,                       -- the tool that it was imported from; NULL for our own
  changes INTEGER NOT NULL DEFAULT 0 -- how often its stored events were thinned or redacted
) STRICT;

CREATE TABLE _event(                 -- one row per event, under the session that wrote it
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL REFERENCES _session(id),
  seq INTEGER NOT NULL,
  type TEXT NOT NULL,
  time INTEGER NOT NULL,             -- epoch ms
  data TEXT NOT NULL,                -- JSON; what is stored elsewhere is missing here, `_entry` puts it in
  source TEXT,                       -- JSON array of earlier seqs, NULL if not recorded
  op TEXT,                           -- JSON: how the event joined the surface; NULL for log-only events
  frame INTEGER,                     -- of a streamed fragment, which is the data alone: _frame.id
  cut INTEGER,                       -- where the first of its _piece rows belongs, NULL if there are none
  span INTEGER,                      -- how many seqs a thinned run of chunks stands for, NULL for one
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

-- The fragments of an answer differ in a few letters: what stands around them is stored once.
CREATE TABLE _frame(
  id INTEGER PRIMARY KEY, head TEXT NOT NULL, tail TEXT NOT NULL,
  turn TEXT, step TEXT,              -- JSON, for the rules
  UNIQUE (head, tail)
) STRICT;

-- Text that several events have in common, like a system prompt, or that was packed: views fill it in. A packed block is
-- compressed, which only our own connection reads. It has another function `likely` (store/packed.py), which
-- decompresses, and is 1 for NULL; SQLite's own gives back its argument, so a stock shell sees packed text as empty.
CREATE TABLE _block(
  id INTEGER PRIMARY KEY,
  session INTEGER REFERENCES _session(id),  -- of a packed block: whose text it holds
  body ANY NOT NULL
) STRICT;
CREATE INDEX _block_text ON _block(length(body), substr(body, -64)) WHERE session IS NULL;
CREATE INDEX _block_session ON _block(session) WHERE session IS NOT NULL;
CREATE TABLE _piece(
  event INTEGER NOT NULL REFERENCES _event(id),
  at INTEGER NOT NULL,               -- after so many characters of the event's data
  rest INTEGER NOT NULL,             -- characters of data that follow, up to the next piece or the end
  block INTEGER NOT NULL REFERENCES _block(id),
  start INTEGER NOT NULL, size INTEGER,  -- which bytes of a packed block; NULL for the whole of a shared one
  PRIMARY KEY (event, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX _piece_shared ON _piece(block) WHERE size IS NULL;

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

CREATE TABLE _deleted(               -- sessions that are not to come back by themselves, from another machine or tool
  name TEXT PRIMARY KEY, deleted_at INTEGER NOT NULL
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

CREATE TABLE _redaction(             -- events whose text was taken out for good
  session INTEGER NOT NULL REFERENCES _session(id), seq INTEGER NOT NULL, at INTEGER NOT NULL,
  PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

-------------------------------------------------------------------------------------------------- 2. views

-- Events with all their text. Where that is of no use `_event` is read itself, as its indexes are of what it holds.
CREATE VIEW _entry(id, session, seq, type, time, data, source, op, span) AS
  SELECT e.id, e.session, e.seq, e.type, e.time,
    CASE WHEN e.frame IS NOT NULL THEN
        coalesce((SELECT f.head || e.data || f.tail FROM _frame f WHERE f.id = e.frame), '')
      WHEN e.cut IS NOT NULL THEN substr(e.data, 1, e.cut) || coalesce((SELECT group_concat(part, '') FROM (
        SELECT CASE WHEN p.size IS NULL THEN b.body WHEN likely(NULL) IS NULL THEN ''
            ELSE CAST(substr(likely(b.body), p.start + 1, p.size) AS TEXT) END || substr(e.data, p.at + 1, p.rest) AS part
        FROM _piece p JOIN _block b ON b.id = p.block WHERE p.event = e.id ORDER BY p.at)), '')
      ELSE e.data END,
    e.source, e.op, coalesce(e.span, 1)
  FROM _event e;

-- The next seq of a session is read off its last event, not counted: a counter would have every append write one more
-- page. The index on (session, seq) finds it in one seek.
CREATE VIEW _length(session, length) AS
  SELECT s.id, coalesce((SELECT e.seq + coalesce(e.span, 1) FROM _event e WHERE e.session = s.id ORDER BY e.seq DESC LIMIT 1),
    s.start)
  FROM _session s;

CREATE VIEW session(id, version, created_at, cwd, parent_session, seed_length, delegation_depth, incarnation, revision,
    length, replace_generation, turns, steps, open_turn, open_step, updated_at, pinned, hidden, source,
    changes) AS
  SELECT s.name, s.version, s.created_at, s.cwd, s.parent, s.seed_length, s.delegation_depth, s.incarnation,
    l.length,                        -- a log only grows, so its length names its state (PE-45)
    l.length, s.generation, s.turns, s.steps, s.open_turn, s.open_step, s.updated_at, s.pinned, s.hidden,
    s.source, s.changes
  FROM _session s JOIN _length l ON l.session = s.id;

CREATE VIEW fork(id, parent_session, boundary, created_at, cwd, source) AS  -- sessions that share their parent's first events
  SELECT name, parent, seed_length - 1, created_at, cwd, source FROM _session s
  WHERE EXISTS (SELECT 1 FROM _lineage l WHERE l.session = s.id AND l.owner <> s.id);

-- `part` rises with seq: an ancestor's events are one part of a fork's log, its own the last. Rows asked for ORDER BY
-- part, seq come straight from the index, those by seq alone are all read and sorted first.
-- `span` is 1 but for a run of chunks that was thinned: it stands for so many seqs, and the next event follows them.
CREATE VIEW event(session_id, seq, type, time, data, source_event_seqs, surface_op, part, span) AS
  SELECT s.name, e.seq, e.type, e.time, e.data, e.source, e.op, l.hi, e.span
  FROM _session s JOIN _lineage l ON l.session = s.id JOIN _entry e ON e.session = l.owner AND e.seq < l.hi;

CREATE VIEW driver_event(holder, session_id, seq, type, time, data, source_event_seqs, surface_op, pieces) AS
  -- never has rows; takes the appends of a session's driver (PE-72, PE-74). `pieces` are text to be stored once: a JSON
  -- array of [after so many characters of data, text].
  SELECT NULL, session_id, seq, type, time, data, source_event_seqs, surface_op, NULL FROM event WHERE false;

-- Never have rows either; each takes a rewriting of stored events that leaves the log what it is (docs/spec/persistence.md).
CREATE VIEW packing(session_id, seq, data, pieces, whole) AS  -- pieces: JSON array of [at, block, start, size]
  SELECT session_id, seq, data, NULL, data FROM event WHERE false;
CREATE VIEW packed_block(id, session_id, bytes, body) AS  -- without a session: text that several events share
  SELECT b.id, s.name, length(CAST(b.body AS BLOB)), NULL FROM _block b LEFT JOIN _session s ON s.id = b.session;
CREATE VIEW packed_event(session_id, seq) AS
  SELECT s.name, e.seq FROM _session s JOIN _event e ON e.session = s.id AND e.cut IS NOT NULL;
CREATE VIEW unpacking(session_id) AS SELECT NULL WHERE false;
CREATE VIEW thinning(session_id, first, last) AS SELECT session_id, seq, seq FROM event WHERE false;
CREATE VIEW redaction(session_id, seq, at, data) AS  -- has the events that were redacted; data is what is to stay
  SELECT s.name, r.seq, r.at, NULL FROM _redaction r JOIN _session s ON s.id = r.session;

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
  FROM _session s JOIN _surface v ON v.session = s.id AND v.died IS NULL LEFT JOIN _entry e ON e.id = v.event
  UNION ALL
  SELECT s.name, v.ord, v.seq, e.type, e.data
  FROM _session s JOIN _lineage l ON l.session = s.id AND l.owner <> s.id JOIN _session o ON o.id = l.owner
    JOIN _surface v ON v.session = l.owner AND v.died IS NULL AND v.seq < l.hi LEFT JOIN _entry e ON e.id = v.event
  WHERE +v.seq >= o.start AND NOT EXISTS (
    SELECT 1 FROM _lineage k JOIN _surface d ON d.session = k.owner AND d.seq = v.seq AND d.died < k.hi
    WHERE k.session = s.id AND k.hi > l.hi)
  UNION ALL
  SELECT s.name, v.ord, v.seq, e.type, e.data
  FROM _session s JOIN _lineage l ON l.session = s.id AND l.owner <> s.id JOIN _session o ON o.id = l.owner
    JOIN _surface v ON v.session = l.owner AND v.died >= l.hi AND +v.seq < l.hi LEFT JOIN _entry e ON e.id = v.event
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
  SELECT s.name, c.data ->> 'turn', c.data ->> 'step', c.data ->> 'callId', c.data ->> 'name',
    (SELECT x.data ->> 'arguments' FROM _entry x WHERE x.id = c.id), c.seq, r.seq, r.data ->> 'isError',
    r.data ->> '$.error.code', (SELECT x.data -> 'content' FROM _entry x WHERE x.id = r.id), r.time - c.time
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

CREATE VIEW request_header(session_id, seq, header, reason, provider, model) AS
  SELECT s.name, h.seq, (SELECT x.data -> 'header' FROM _entry x WHERE x.id = h.id), h.data ->> 'reason',
    h.data ->> '$.header.config.provider', h.data ->> '$.header.config.model'
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
      (SELECT (SELECT coalesce(x.data ->> '$.envelope.displayContent[0].text', x.data ->> '$.content[0].text')
          FROM _entry x WHERE x.id = p.id)
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
    (SELECT iif(e.type = 'assistant/chunk', e.data ->> '$.chunk.type', NULL) FROM _entry e WHERE e.session = s.id
     ORDER BY e.seq DESC LIMIT 1),
    (SELECT c.data ->> 'name' FROM _event c WHERE c.session = s.id AND c.type = 'tool/call'
       AND c.type <> 'assistant/chunk' ORDER BY c.seq DESC LIMIT 1),
    (SELECT c.data ->> 'arguments' FROM _entry c WHERE c.session = s.id AND c.type = 'tool/call'
       AND c.type <> 'assistant/chunk' ORDER BY c.seq DESC LIMIT 1)
  FROM _session s WHERE s.open_turn IS NOT NULL;

CREATE VIEW inbox(position, session_id, message_id, route, content, source, contexts, meta, sent_at) AS
  SELECT i.id, s.name, i.message, i.route, i.content, i.source, i.contexts, i.meta, i.sent_at
  FROM _inbox i JOIN _session s ON s.id = i.session;

CREATE VIEW setting(key, value) AS SELECT key, value FROM _setting;

CREATE VIEW cache(key, value) AS SELECT key, value FROM _cache;

CREATE VIEW trusted_folder(folder, trusted_at) AS SELECT folder, trusted_at FROM _trust;

CREATE VIEW migration(id, name, applied_at, program) AS SELECT id, name, applied_at, program FROM _migration;

CREATE VIEW deleted_session(id, deleted_at) AS SELECT name, deleted_at FROM _deleted;

CREATE VIEW import_source(tool, path, stamp, state, imported_at) AS SELECT tool, path, stamp, state, imported_at FROM _import;

CREATE VIEW saved_query(name, sql, about, saved_at) AS SELECT name, sql, about, saved_at FROM _query;

-- Two states of the history differ in last_event or in generation.
CREATE VIEW store(store_id, schema_version, sessions, search_indexed, last_event, generation, index_version) AS
  SELECT store_id, (SELECT max(id) FROM _migration), (SELECT count(*) FROM _session), indexed,
    (SELECT coalesce(max(id), 0) FROM _event), generation, index_version
  FROM _store;

CREATE VIEW rebuild(session_id) AS SELECT NULL WHERE false;  -- never has rows; takes what is to be derived anew (PE-79)
CREATE VIEW _placed(session, seq, op, id) AS  -- never has rows; takes events that join the surface
  SELECT session, seq, op, id FROM _event WHERE false;

------------------------------------------------------------------------------------------ full-text search

CREATE VIEW search_document(id, session_id, seq, type, time, text) AS  -- what an event says to a person (SQ-40, SQ-41)
  SELECT * FROM (SELECT e.id, s.name, e.seq, e.type, e.time,
    (SELECT group_concat(part, char(10)) FROM (
      SELECT trim(part, char(9, 10, 11, 12, 13, 32, 160, 5760, 8192, 8193, 8194, 8195, 8196, 8197, 8198, 8199, 8200, 8201,
        8202, 8232, 8233, 8239, 8287, 12288, 65279)) AS part FROM (
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
  FROM _entry e JOIN _session s ON s.id = e.session
  WHERE e.type <> 'assistant/chunk' AND e.type IN ('user/message', 'assistant/message', 'steering/message',
    'prompt/blocked', 'tool/call', 'tool/result', 'todo/write', 'turn/end')) WHERE text IS NOT NULL;

CREATE VIEW search_event(id, session_id, seq, type, time, data) AS  -- the events that have documents, which may be empty
  SELECT e.id, s.name, e.seq, e.type, e.time, e.data FROM _entry e JOIN _session s ON s.id = e.session
  WHERE e.type <> 'assistant/chunk' AND e.type IN ('user/message', 'assistant/message', 'steering/message',
    'prompt/blocked', 'tool/call', 'tool/result', 'todo/write', 'turn/end');

-- What the index reads back: FTS5 prepares this without virtual tables, so no json_each here; the functions extract the
-- text themselves. `parts` are the words inside names like camelCase, which a literal phrase is not to find.
CREATE VIEW _search_source(id, text, parts, tags) AS
  SELECT e.id, search_text(e.type, e.data), search_parts(e.type, e.data),
    search_tags(e.type, e.data, s.name, s.cwd, s.source)
  FROM _entry e JOIN _session s ON s.id = e.session
  WHERE e.type <> 'assistant/chunk' AND e.type IN ('user/message', 'assistant/message', 'steering/message',
    'prompt/blocked', 'tool/call', 'tool/result', 'todo/write', 'turn/end');
CREATE VIRTUAL TABLE search USING fts5(text, parts, tags, content = '_search_source', content_rowid = 'id',
  tokenize = 'unicode61');
INSERT INTO search(search, rank) VALUES ('hashsize', 8388608);  -- bytes held before they are written: a tenth faster
-- The indexed words and how many documents have each: `conf*` is looked up here, a tenth of what FTS5 takes to merge
-- the lists of every word that begins so.
CREATE VIRTUAL TABLE search_word USING fts5vocab(search, row);
