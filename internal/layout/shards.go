package layout

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// MaxShards is the most shards that a Shards can have, and MaxWeight the greatest weight of a
// member.
const (
	MaxShards = 1 << 16
	MaxWeight = 1000
)

// The directories of a Shards: the group of its members, and that of the locks of its shards.
const (
	WorkersName = "workers"
	ShardsName  = "shards"
)

// ShardName returns the name of the directory of the lock of a shard.
func ShardName(i int) string { return strconv.Itoa(i) }

// ParseShard returns the number of a shard.
func ParseShard(name string) (int, bool) {
	i, err := strconv.Atoi(name)
	return i, err == nil && i >= 0 && i < MaxShards && ShardName(i) == name
}

// ShardMember is the data of the node of a member of a Shards.
type ShardMember struct {
	Shards int    `json:"shards"` // the number of all shards
	Weight int    `json:"weight"`
	Data   []byte `json:"data,omitempty"`
}

// ParseShardMember decodes the data of a member. Values out of range are ErrDecode too.
func ParseShardMember(data []byte) (ShardMember, error) {
	var m ShardMember
	err := json.Unmarshal(data, &m)
	if err != nil || m.Shards < 1 || m.Shards > MaxShards || m.Weight < 1 || m.Weight > MaxWeight {
		return ShardMember{}, fmt.Errorf("%w: not a member of shards", ErrDecode)
	}
	return m, nil
}

// Encode returns the data of the node.
func (m ShardMember) Encode() ([]byte, error) { return json.Marshal(m) }
