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
  DELETE FROM _deleted WHERE name = new.id;
END;

CREATE TRIGGER fork_insert INSTEAD OF INSERT ON fork BEGIN                                            -- SE-55, SE-56
  SELECT RAISE(ABORT, 'HEADER_INVALID') WHERE typeof(new.id) <> 'text' OR new.id = ''
    OR (new.created_at IS NOT NULL
        AND (typeof(new.created_at) <> 'integer' OR new.created_at NOT BETWEEN 0 AND 9007199254740991))
    OR (new.cwd IS NOT NULL AND NOT (typeof(new.cwd) = 'text' AND (new.cwd GLOB '/*' OR new.cwd GLOB '[A-Za-z]:*')))
    OR (new.source IS NOT NULL AND (typeof(new.source) <> 'text' OR new.source = ''));
  SELECT RAISE(ABORT, 'SESSION_ALREADY_EXISTS') WHERE EXISTS (SELECT 1 FROM _session WHERE name = new.id);
  SELECT RAISE(ABORT, 'SESSION_NOT_FOUND') WHERE NOT EXISTS (SELECT 1 FROM _session WHERE name = new.parent_session);
  SELECT RAISE(ABORT, 'INVALID_BOUNDARY') WHERE typeof(new.boundary) <> 'integer'
    OR NOT EXISTS (SELECT 1 FROM event WHERE session_id = new.parent_session AND seq = new.boundary);
  SELECT RAISE(ABORT, 'OPEN_TURN') WHERE NOT EXISTS
    (SELECT 1 FROM event WHERE session_id = new.parent_session AND seq = new.boundary AND type = 'turn/end');
  INSERT INTO _session(name, created_at, cwd, parent, seed_length, delegation_depth, incarnation, start, turns,
      generation, updated_at, source)
    SELECT new.id, coalesce(new.created_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
      coalesce(new.cwd, p.cwd), p.name, new.boundary + 1, 0, lower(hex(randomblob(16))), new.boundary + 1,
      b.data ->> 'turn', 0, b.time, new.source
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
  DELETE FROM _deleted WHERE name = new.id;
END;

CREATE TRIGGER session_update INSTEAD OF UPDATE ON session BEGIN               -- the user's marks may change, no more
  SELECT RAISE(ABORT, 'SESSION_IMMUTABLE') WHERE
    (new.id, new.version, new.created_at, new.cwd, new.parent_session, new.seed_length, new.delegation_depth,
      new.incarnation, new.revision, new.length, new.replace_generation, new.turns, new.steps, new.open_turn,
      new.open_step, new.updated_at, new.source, new.changes) IS NOT
    (old.id, old.version, old.created_at, old.cwd, old.parent_session, old.seed_length, old.delegation_depth,
      old.incarnation, old.revision, old.length, old.replace_generation, old.turns, old.steps, old.open_turn,
      old.open_step, old.updated_at, old.source, old.changes)
    OR typeof(new.pinned) NOT IN ('null', 'integer') OR typeof(new.hidden) NOT IN ('null', 'integer');
  UPDATE _session SET pinned = new.pinned, hidden = new.hidden WHERE name = old.id;
  UPDATE _store SET generation = generation + 1 WHERE new.hidden IS NOT old.hidden;
END;

CREATE TRIGGER session_delete INSTEAD OF DELETE ON session BEGIN
  SELECT RAISE(ABORT, 'SESSION_LEASED') FROM _lease l JOIN _session s ON s.id = l.session WHERE s.name = old.id;
  SELECT RAISE(ABORT, 'SESSION_HAS_FORKS') FROM _session s JOIN _lineage l ON l.owner = s.id AND l.session <> s.id
    WHERE s.name = old.id;
  INSERT INTO search(search, rowid, text, parts, tags) SELECT 'delete', d.id, d.text, d.parts, d.tags FROM _search_source d
    WHERE d.id IN (SELECT e.id FROM _event e JOIN _session s ON s.id = e.session JOIN _store t
                   WHERE s.name = old.id AND e.id <= t.indexed);
  DELETE FROM _piece WHERE event IN (SELECT e.id FROM _event e JOIN _session s ON s.id = e.session
                                     WHERE s.name = old.id AND e.cut IS NOT NULL);
  DELETE FROM _block WHERE session = (SELECT id FROM _session WHERE name = old.id)
    OR (session IS NULL AND NOT EXISTS (SELECT 1 FROM _piece p WHERE p.block = _block.id AND p.size IS NULL));
  DELETE FROM _redaction WHERE session = (SELECT id FROM _session WHERE name = old.id);
  DELETE FROM _inbox WHERE session = (SELECT id FROM _session WHERE name = old.id);
  DELETE FROM _surface WHERE session = (SELECT id FROM _session WHERE name = old.id);
  DELETE FROM _lineage WHERE session = (SELECT id FROM _session WHERE name = old.id);
  UPDATE _session SET start = -1 WHERE name = old.id;                       -- lets the guard below pass
  DELETE FROM _event WHERE session = (SELECT id FROM _session WHERE name = old.id);
  DELETE FROM _session WHERE name = old.id;
  INSERT OR REPLACE INTO _deleted VALUES (old.id, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER));
  UPDATE _store SET generation = generation + 1,
    indexed = min(indexed, (SELECT coalesce(max(id), 0) FROM _event));      -- ids above it may come again
END;

------------------------------------------------------------------------------------------------------ appending

-- A driven session takes events from the holder of its lease alone, one that nobody drives from anybody: a driver that
-- was put aside is told at its next write, whatever the new one has written by then.
CREATE TRIGGER driver_event_pieces INSTEAD OF INSERT ON driver_event WHEN new.pieces IS NOT NULL BEGIN
  INSERT INTO _block(body) SELECT DISTINCT p.value ->> 1 FROM json_each(new.pieces) p
    WHERE NOT EXISTS (SELECT 1 FROM _block b WHERE b.session IS NULL AND length(b.body) = length(p.value ->> 1)
      AND substr(b.body, -64) = substr(p.value ->> 1, -64) AND b.body = p.value ->> 1);
  INSERT INTO _piece(event, at, rest, block, start, size)
    SELECT e.id, p.value ->> 0, coalesce(new.pieces ->> ('$[' || (p.key + 1) || '][0]'), length(e.data)) - (p.value ->> 0),
      (SELECT min(b.id) FROM _block b WHERE b.session IS NULL AND length(b.body) = length(p.value ->> 1)
         AND substr(b.body, -64) = substr(p.value ->> 1, -64) AND b.body = p.value ->> 1),
      0, NULL
    FROM json_each(new.pieces) p, _session s JOIN _event e ON e.session = s.id
    WHERE s.name = new.session_id AND e.seq = coalesce(new.seq, (SELECT l.length - 1 FROM _length l WHERE l.session = s.id));
END;
CREATE TRIGGER driver_event_insert INSTEAD OF INSERT ON driver_event WHEN new.type IS NOT 'assistant/chunk' BEGIN
  SELECT RAISE(ABORT, 'SESSION_NOT_FOUND') WHERE NOT EXISTS (SELECT 1 FROM _session WHERE name = new.session_id);
  SELECT RAISE(ABORT, 'SESSION_LEASED') FROM _session s WHERE s.name = new.session_id
    AND new.holder IS NOT (SELECT l.holder FROM _lease l WHERE l.session = s.id);
  INSERT INTO _event(session, seq, type, time, data, source, op, cut)
    SELECT id, coalesce(new.seq, (SELECT l.length FROM _length l WHERE l.session = id)), new.type,
      coalesce(new.time, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)), new.data,
      new.source_event_seqs, new.surface_op, new.pieces ->> '$[0][0]'
    FROM _session WHERE name = new.session_id;
END;
-- A fragment goes in without what stands around it: its data is `"lo, wor"` of `{"turn":1,…,"text":"lo, wor"}}`.
CREATE TRIGGER driver_event_chunk INSTEAD OF INSERT ON driver_event WHEN new.type IS 'assistant/chunk' BEGIN
  SELECT RAISE(ABORT, 'SESSION_NOT_FOUND') WHERE NOT EXISTS (SELECT 1 FROM _session WHERE name = new.session_id);
  SELECT RAISE(ABORT, 'SESSION_LEASED') FROM _session s WHERE s.name = new.session_id
    AND new.holder IS NOT (SELECT l.holder FROM _lease l WHERE l.session = s.id);
  SELECT RAISE(ABORT, 'EVENT_NOT_JSON') WHERE json_valid(new.data) IS NOT 1;                                     -- SE-2
  INSERT OR IGNORE INTO _frame(head, tail, turn, step)
    SELECT substr(new.data, 1, at), substr(new.data, at + 1 + length(part)), new.data -> 'turn', new.data -> 'step'
    FROM (SELECT part, instr(new.data, ':' || part) AS at FROM (SELECT coalesce(new.data -> '$.chunk.text',
      new.data -> '$.chunk.argumentsDelta') AS part) WHERE part GLOB '"*') WHERE at > 0;
  INSERT INTO _event(session, seq, type, time, data, source, op, frame, span)
    SELECT s.id, coalesce(new.seq, (SELECT l.length FROM _length l WHERE l.session = s.id)), new.type,
      coalesce(new.time, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)), iif(f.id IS NULL, new.data, c.part),
      new.source_event_seqs, new.surface_op, f.id,
      iif(new.data ->> '$.chunk.type' = 'thinned' AND new.data ->> '$.chunk.count' > 1, new.data ->> '$.chunk.count', NULL)
    FROM _session s JOIN (SELECT part, instr(new.data, ':' || part) AS at FROM (SELECT coalesce(new.data -> '$.chunk.text',
        new.data -> '$.chunk.argumentsDelta') AS part)) c
      LEFT JOIN _frame f ON c.part GLOB '"*' AND c.at > 0 AND f.head = substr(new.data, 1, c.at)
        AND f.tail = substr(new.data, c.at + 1 + length(c.part))
    WHERE s.name = new.session_id;
END;
CREATE TRIGGER event_insert INSTEAD OF INSERT ON event BEGIN
  INSERT INTO driver_event(holder, session_id, seq, type, time, data, source_event_seqs, surface_op, pieces)
    VALUES (NULL, new.session_id, new.seq, new.type, new.time, new.data, new.source_event_seqs, new.surface_op, NULL);
END;
CREATE TRIGGER event_update INSTEAD OF UPDATE ON event BEGIN SELECT RAISE(ABORT, 'EVENT_IMMUTABLE'); END;
CREATE TRIGGER event_delete INSTEAD OF DELETE ON event BEGIN SELECT RAISE(ABORT, 'EVENT_IMMUTABLE'); END;

-- The checks stand on the table itself, so that no way of inserting goes round them. They are two triggers, not nine:
-- asking each of nine for its WHEN made an append a tenth slower. SQLite runs the triggers of a moment from the last
-- created to the first, so what every event must obey stands last and is asked first.

CREATE TRIGGER _event_kinds BEFORE INSERT ON _event WHEN new.type <> 'assistant/chunk' AND (new.op IS NOT NULL
    OR new.source IS NOT NULL OR new.type IN ('turn/end', 'request/header', 'request/header-delta', 'mode/set')) BEGIN
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
    WHEN new.frame IS NOT NULL THEN new.type = 'assistant/chunk' AND EXISTS (SELECT 1 FROM _frame f WHERE f.id = new.frame
      AND f.turn IS (s.open_turn || '') AND f.step IS (s.open_step || ''))
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

CREATE TRIGGER _event_immutable BEFORE UPDATE ON _event BEGIN
  SELECT RAISE(ABORT, 'EVENT_IMMUTABLE') WHERE (SELECT rewriting FROM _store) IS NOT old.session
    OR (new.id, new.session, new.seq, new.type, new.time, new.source, new.op)
      IS NOT (old.id, old.session, old.seq, old.type, old.time, old.source, old.op);
END;
CREATE TRIGGER _event_kept BEFORE DELETE ON _event BEGIN
  SELECT RAISE(ABORT, 'EVENT_IMMUTABLE') FROM _session WHERE id = old.session AND start >= 0
    AND (SELECT rewriting FROM _store) IS NOT old.session;
END;

--------------------------------------------------------------------------------- rewriting what is stored, for good

-- Packing changes where the text lies, not what the log says: the trigger compares.
CREATE TRIGGER packing_insert INSTEAD OF INSERT ON packing BEGIN
  SELECT RAISE(ABORT, 'SESSION_LEASED') FROM _lease l JOIN _session s ON s.id = l.session WHERE s.name = new.session_id;
  SELECT RAISE(ABORT, 'REWRITE_INVALID') WHERE new.whole IS NOT (SELECT e.data FROM _entry e JOIN _session s
    ON s.id = e.session WHERE s.name = new.session_id AND e.seq = new.seq);
  UPDATE _store SET rewriting = (SELECT id FROM _session WHERE name = new.session_id);
  DELETE FROM _piece WHERE event = (SELECT e.id FROM _event e, _store t WHERE e.session = t.rewriting AND e.seq = new.seq);
  UPDATE _event SET data = new.data, cut = new.pieces ->> '$[0][0]', frame = NULL
    WHERE session = (SELECT rewriting FROM _store) AND seq = new.seq;
  INSERT INTO _piece(event, at, rest, block, start, size)
    SELECT e.id, p.value ->> 0, coalesce(new.pieces ->> ('$[' || (p.key + 1) || '][0]'), length(e.data)) - (p.value ->> 0),
      p.value ->> 1, p.value ->> 2, p.value ->> 3
    FROM json_each(coalesce(new.pieces, '[]')) p, _store t JOIN _event e ON e.session = t.rewriting AND e.seq = new.seq;
  SELECT RAISE(ABORT, 'REWRITE_INVALID') WHERE new.whole IS NOT (SELECT e.data FROM _entry e, _store t
    WHERE e.session = t.rewriting AND e.seq = new.seq);
  UPDATE _store SET rewriting = NULL;
END;
CREATE TRIGGER packed_block_insert INSTEAD OF INSERT ON packed_block BEGIN
  SELECT RAISE(ABORT, 'REWRITE_INVALID') WHERE typeof(new.body) <> 'blob';
  INSERT INTO _block(id, session, body) SELECT new.id, id, new.body FROM _session WHERE name = new.session_id;
END;
-- Blocks that nothing refers to any more, after what was packed was written out or redacted.
CREATE TRIGGER unpacking_insert INSTEAD OF INSERT ON unpacking BEGIN
  DELETE FROM _block WHERE session IS NULL
    AND NOT EXISTS (SELECT 1 FROM _piece p WHERE p.block = _block.id AND p.size IS NULL);
  DELETE FROM _block WHERE session = (SELECT id FROM _session WHERE name = new.session_id)
    AND id NOT IN (SELECT p.block FROM _session s JOIN _event e ON e.session = s.id JOIN _piece p ON p.event = e.id
                   WHERE s.name = new.session_id AND e.cut IS NOT NULL);
END;

-- A run of fragments becomes one chunk that says how many there were; their message has the text.
CREATE TRIGGER thinning_insert INSTEAD OF INSERT ON thinning BEGIN
  SELECT RAISE(ABORT, 'SESSION_LEASED') FROM _lease l JOIN _session s ON s.id = l.session WHERE s.name = new.session_id;
  SELECT RAISE(ABORT, 'REWRITE_INVALID') WHERE NOT EXISTS (SELECT 1 FROM _session s WHERE s.name = new.session_id
      AND new.first < new.last AND (s.open_turn IS NULL OR new.last < (SELECT max(b.seq) FROM _event b
        WHERE b.session = s.id AND b.type = 'turn/start' AND b.type <> 'assistant/chunk'))
      AND (SELECT sum(coalesce(e.span, 1)) FROM _event e WHERE e.session = s.id AND e.seq BETWEEN new.first AND new.last
           AND e.type = 'assistant/chunk' AND e.op IS NULL) = new.last - new.first + 1);
  UPDATE _store SET rewriting = (SELECT id FROM _session WHERE name = new.session_id), generation = generation + 1;
  DELETE FROM _piece WHERE event IN (SELECT id FROM _event WHERE session = (SELECT rewriting FROM _store)
    AND seq BETWEEN new.first + 1 AND new.last AND cut IS NOT NULL);
  UPDATE _event SET span = new.last - new.first + 1, frame = NULL, cut = NULL,
      data = (SELECT json_object('turn', w.data -> 'turn', 'step', w.data -> 'step',
          'chunk', json_object('type', 'thinned', 'count', new.last - new.first + 1)) FROM _entry w WHERE w.id = _event.id)
    WHERE session = (SELECT rewriting FROM _store) AND seq = new.first;
  DELETE FROM _piece WHERE event = (SELECT id FROM _event WHERE session = (SELECT rewriting FROM _store) AND seq = new.first);
  DELETE FROM _event WHERE session = (SELECT rewriting FROM _store) AND seq > new.first AND seq <= new.last;
  UPDATE _session SET changes = changes + 1 WHERE id = (SELECT rewriting FROM _store);
  UPDATE _store SET rewriting = NULL;
END;

-- Only texts may change, and none by which events refer to each other. The index forgets the old text.
CREATE TRIGGER redaction_insert INSTEAD OF INSERT ON redaction BEGIN
  SELECT RAISE(ABORT, 'SESSION_LEASED') FROM _lease l JOIN _session s ON s.id = l.session WHERE s.name = new.session_id;
  SELECT RAISE(ABORT, 'EVENT_NOT_FOUND') WHERE NOT EXISTS (SELECT 1 FROM _event e JOIN _session s ON s.id = e.session
    WHERE s.name = new.session_id AND e.seq = new.seq);
  SELECT RAISE(ABORT, 'EVENT_NOT_JSON') WHERE json_valid(new.data) IS NOT 1;
  SELECT RAISE(ABORT, 'REWRITE_INVALID') FROM _entry e JOIN _session s ON s.id = e.session
    WHERE s.name = new.session_id AND e.seq = new.seq AND (
      EXISTS (SELECT fullkey, type, iif(type = 'text' AND key NOT IN ('type', 'kind', 'callId', 'toolCallId', 'id'), 0, atom)
              FROM json_tree(e.data)
              EXCEPT SELECT fullkey, type, iif(type = 'text' AND key NOT IN ('type', 'kind', 'callId', 'toolCallId', 'id'),
                0, atom) FROM json_tree(new.data))
      OR (SELECT count(*) FROM json_tree(e.data)) <> (SELECT count(*) FROM json_tree(new.data)));
  INSERT INTO search(search, rowid, text, parts, tags) SELECT 'delete', d.id, d.text, d.parts, d.tags FROM _search_source d
    WHERE d.id = (SELECT e.id FROM _event e JOIN _session s ON s.id = e.session JOIN _store t
                  WHERE s.name = new.session_id AND e.seq = new.seq AND e.id <= t.indexed);
  UPDATE _store SET rewriting = (SELECT id FROM _session WHERE name = new.session_id), generation = generation + 1;
  DELETE FROM _piece WHERE event = (SELECT e.id FROM _event e, _store t WHERE e.session = t.rewriting AND e.seq = new.seq);
  UPDATE _event SET data = new.data, cut = NULL, frame = NULL
    WHERE session = (SELECT rewriting FROM _store) AND seq = new.seq;
  INSERT INTO search(rowid, text, parts, tags) SELECT d.id, d.text, d.parts, d.tags FROM _search_source d
    WHERE d.id = (SELECT e.id FROM _event e, _store t
                  WHERE e.session = t.rewriting AND e.seq = new.seq AND e.id <= t.indexed);
  INSERT OR REPLACE INTO _redaction SELECT rewriting, new.seq,
    coalesce(new.at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) FROM _store;
  UPDATE _session SET changes = changes + 1 WHERE id = (SELECT rewriting FROM _store);
  UPDATE _store SET rewriting = NULL;
END;


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
  SELECT RAISE(ABORT, 'SURFACE_INVALID') FROM _entry e WHERE new.type = 'tool/result'                           -- SE-15
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

CREATE TRIGGER deleted_session_insert INSTEAD OF INSERT ON deleted_session BEGIN
  INSERT OR IGNORE INTO _deleted SELECT new.id, new.deleted_at WHERE NOT EXISTS (SELECT 1 FROM _session WHERE name = new.id);
END;
CREATE TRIGGER deleted_session_delete INSTEAD OF DELETE ON deleted_session BEGIN
  DELETE FROM _deleted WHERE name = old.id;
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
-- What the functions make of a text must be what they made of it when it was indexed, or it could not be removed.
CREATE TRIGGER store_index_version INSTEAD OF UPDATE OF index_version ON store WHEN new.index_version IS NOT old.index_version BEGIN
  INSERT INTO search(search) VALUES ('delete-all');
  UPDATE _store SET indexed = 0, index_version = new.index_version;
END;
CREATE TRIGGER rebuild_index INSTEAD OF INSERT ON rebuild WHEN new.session_id IS NULL BEGIN
  INSERT INTO search(search) VALUES ('delete-all');
  UPDATE _store SET indexed = 0;
END;

-- Indexing follows the log by watermark, at the end of each turn and before each search: a document costs 12 us there
-- against several times that inside the append, a stock shell can append, and a missed run repairs itself.
CREATE TRIGGER store_update INSTEAD OF UPDATE OF search_indexed ON store BEGIN
  INSERT INTO search(rowid, text, parts, tags) SELECT id, text, parts, tags FROM _search_source
    WHERE id > (SELECT indexed FROM _store) AND id <= new.search_indexed;
  UPDATE _store SET indexed = max(indexed, min(new.search_indexed, (SELECT coalesce(max(id), 0) FROM _event)));
END;
