// Package shards is the engine of Shards: a fixed number of shards, each with one owner among the members.
//
//	shards.go    Shards: its nodes, and the owners as they are on the service
//	member.go    a member, from the beginning of an All to the end of its last shard: the rules and its loop
//	run.go       Run: calls a function for each shard, again after a failure, until the shard moves
//
// The members are those of a group (package group). Package assign computes the assignment. The owner of
// a shard is the holder of its lock (package line). Package coord has the public types and
// their documentation.
//
// TestShards of internal/recipetest tests it, and internal/model/shards_test.go
// explores the rules.
package shards
