-- Whether a stored log can be driven on (PE-10, PE-32): its events are all there, of kinds that are still read, and
-- those of an open turn, which a repair would close, are readable.
-- session: id
-- → length (by the last seq), events (there now), last_turn_event (the last turn/start or turn/end as "TYPE TURN"),
--   turns, open_turn, legacy_seq (of a removed kind, or NULL), unreadable_seq (in the open turn, or NULL)
SELECT s.length,
  (SELECT coalesce(sum(span), 0) FROM event WHERE session_id = :session),
  (SELECT iif(json_valid(data), type || ' ' || (data ->> 'turn'), type)
   FROM event WHERE session_id = :session AND type IN ('turn/start', 'turn/end')
     AND type <> 'assistant/chunk' ORDER BY part DESC, seq DESC LIMIT 1),
  s.turns, s.open_turn,
  coalesce(
    (SELECT min(seq) FROM event WHERE session_id = :session AND type <> 'assistant/chunk'
       AND type IN ('request/header-delta', 'mode/set')),
    (SELECT min(seq) FROM request_header WHERE session_id = :session AND reason = 'fallback')),
  iif(s.open_turn IS NULL, NULL,
    (SELECT min(seq) FROM event WHERE session_id = :session AND json_valid(data) = 0 AND seq >=
       (SELECT seq FROM event WHERE session_id = :session AND type = 'turn/start' AND type <> 'assistant/chunk'
        ORDER BY part DESC, seq DESC LIMIT 1)))
FROM session s WHERE s.id = :session
