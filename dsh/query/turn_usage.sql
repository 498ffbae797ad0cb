-- Tokens of one turn by model, one figure a step added up (HD-7); no row if no step reported any.
-- Turns are numbered without gaps, so the turn's start is counted back from the last one: a late turn costs no more.
-- session: id; turn: number
-- → provider, model, input, output, cache_read, cache_write, reasoning (the last three NULL if no step reported them)
SELECT provider, model, sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens),
  sum(reasoning_tokens)
FROM usage WHERE session_id = :session AND turn = :turn AND start_seq >
  (SELECT seq FROM event WHERE session_id = :session AND type = 'turn/start' AND type <> 'assistant/chunk'
   ORDER BY part DESC, seq DESC LIMIT 1 OFFSET (SELECT turns FROM session WHERE id = :session) - :turn)
GROUP BY provider, model
