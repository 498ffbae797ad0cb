-- Whether a stored log can be driven on (PE-10, PE-32): the events of its last turn and all that the model sees are
-- there, of kinds that are still read, and those of an open turn, which a repair would close, are readable. It costs
-- the same however long the log is; what `log_check` counts is found when it is read.
-- session: id
-- → length (by the last seq), first (seq of the last turn's start, or NULL), events (there now from that on),
--   last_turn_event (the last turn/end, or turn/start of an open turn, as "TYPE TURN"), turns, open_turn,
--   legacy_seq (of a removed kind, or NULL), unreadable_seq (in the open turn, or NULL), lost_seq (of a node of the
--   surface whose event is gone, or NULL)
SELECT s.length, t.seq,
  (SELECT coalesce(sum(e.span), 0) FROM event e WHERE e.session_id = :session AND e.seq >= coalesce(t.seq, 0)),
  (SELECT iif(json_valid(e.data), e.type || ' ' || (e.data ->> 'turn'), e.type)
   FROM event e WHERE e.session_id = :session AND e.type <> 'assistant/chunk'
     AND e.type = iif(s.open_turn IS NULL, 'turn/end', 'turn/start') ORDER BY e.part DESC, e.seq DESC LIMIT 1),
  s.turns, s.open_turn,
  coalesce(
    (SELECT min(e.seq) FROM event e WHERE e.session_id = :session AND e.type <> 'assistant/chunk'
       AND e.type IN ('request/header-delta', 'mode/set')),
    (SELECT iif(json_valid(h.data) AND h.data ->> 'reason' = 'fallback', h.seq, NULL)
     FROM event h WHERE h.session_id = :session AND h.type = 'request/header' AND h.type <> 'assistant/chunk'
     ORDER BY h.part DESC, h.seq DESC LIMIT 1)),
  iif(s.open_turn IS NULL, NULL,
    (SELECT min(e.seq) FROM event e WHERE e.session_id = :session AND json_valid(e.data) = 0 AND e.seq >= t.seq)),
  (SELECT min(v.seq) FROM surface v WHERE v.session_id = :session AND v.type IS NULL)
FROM session s
LEFT JOIN (SELECT seq FROM event WHERE session_id = :session AND type = 'turn/start' AND type <> 'assistant/chunk'
           ORDER BY part DESC, seq DESC LIMIT 1) t
WHERE s.id = :session
