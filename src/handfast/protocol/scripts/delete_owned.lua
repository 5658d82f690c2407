-- delete_owned: delete a key if this owner holds it. The published release, for keys shared with other programs.
-- KEYS   1 lock
-- ARGV   1 owner
-- reply  1 deleted, 0 another owner has it, or it is gone
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
