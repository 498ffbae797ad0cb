-- Where the newest hits of an index expression begin; no row if there are not more than `newest`.
-- match: expression; newest: number of hits
-- → id (of an event, as in search_document)
SELECT rowid FROM search WHERE search MATCH :match ORDER BY rowid DESC LIMIT 1 OFFSET :newest
