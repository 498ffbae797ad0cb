-- Every document in whose text a phrase stands, from the index alone: more places first, then fewer words.
-- match: expression of the index whose first phrase is the one to count
-- → id (of a document), place (dsh.store.phrases)
SELECT rowid, phrase_place(search) AS place FROM search WHERE search MATCH :match ORDER BY place
