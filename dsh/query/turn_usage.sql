-- Tokens of one turn, one figure a step added up (HD-7); every figure NULL if no step reported it.
-- The turn's first seq is looked up from the end of the log, so a late turn costs no more than an early one.
-- session: id; turn: number
-- → steps_reporting, input, output, cache_read, cache_write, reasoning
SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens),
  sum(reasoning_tokens)
FROM usage WHERE session_id = :session AND turn = :turn AND start_seq >
  (SELECT seq FROM event WHERE session_id = :session AND type = 'turn/start' AND type <> 'assistant/chunk'
     AND data ->> 'turn' = :turn ORDER BY seq DESC LIMIT 1)
