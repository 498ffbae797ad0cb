-- Indexed words that have this inside. Reads the whole vocabulary.
-- part: text, folded; limit: words
-- → term
SELECT term FROM search_word WHERE instr(term, :part) AND term < char(57344) LIMIT :limit
