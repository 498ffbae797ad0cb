-- The most frequent indexed words of a range, for a query like `conf*`.
-- low, high: the first word and the first that is not one any more; limit: words
-- → term
SELECT term FROM search_word WHERE term >= :low AND term < :high ORDER BY doc DESC, term LIMIT :limit
