-- Tokens of one turn, one figure a step added up (HD-7); every figure NULL if no step reported it.
-- session: id; turn: number
-- → steps_reporting, input, output, cache_read, cache_write, reasoning
SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens),
  sum(reasoning_tokens)
FROM usage WHERE session_id = :session AND turn = :turn
