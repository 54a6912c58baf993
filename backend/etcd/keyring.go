package etcd

import (
	"strconv"
	"strings"
	"sync"
)

// keyring gives the new sequential nodes of a session their keys. The key of a deleted ephemeral node is
// used again for another ephemeral node when no request can be under way that would write to the new node
// by mistake. A request that compares the create revision never does. Two kinds of requests compare less:
//
// The deletions of session.send compare nothing. Each needs a claim; a node has one claim, which ends with
// the reply. A deletion that was not sent, or whose reply was lost, keeps its claim for ever, and no other
// node gets the key.
//
// A creation does not compare its own key: it would overwrite a node that has the key. So the keyring takes
// a key back from a creation only if the creation has certainly failed, and a commit of unknown outcome is
// not sent again. Of its parent, a creation compares only that the parent is not ephemeral. So each
// sequential node that is not ephemeral gets a new key: else a creation could succeed below another parent.
type keyring struct {
	session string // the same in all its keys

	mu     sync.Mutex
	serial int64
	free   generations[[]string] // by the prefixes of the keys
	own    generations[string]   // of ephemeral nodes of this session that no deletion has claimed, by path
}

// mostFree is the number of prefixes in each of two generations. The keys of the others are not used
// again.
const mostFree = 1 << 12

func newKeyring(session int64) *keyring { return &keyring{session: strconv.FormatInt(session, 36)} }

// fresh returns a key with a prefix that no node has had.
func (k *keyring) fresh(prefix string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.freshLocked(prefix)
}

func (k *keyring) freshLocked(prefix string) string {
	k.serial++
	return prefix + k.session + "." + strconv.FormatInt(k.serial, 36)
}

// take returns a key with a prefix for an ephemeral node: no node has it.
func (k *keyring) take(prefix string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if keys, _ := k.free.get(prefix, mostFree); len(keys) > 0 {
		last := len(keys) - 1
		if last == 0 {
			k.free.remove(prefix)
		} else {
			k.free.put(prefix, keys[:last], mostFree)
		}
		return keys[last]
	}
	return k.freshLocked(prefix)
}

// giveBack takes keys back that no node has and no request under way uses.
func (k *keyring) giveBack(keys ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		prefix := key[:strings.LastIndexByte(key, 0)+len(placeMark(0))]
		free, _ := k.free.get(prefix, mostFree)
		k.free.put(prefix, append(free, key), mostFree)
	}
}

// created records that this session has created the ephemeral node at path.
func (k *keyring) created(path, key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.own.put(path, key, mostKeys)
}

// claim reports whether the caller may delete the key of the node at path without a compare. Only one caller
// may, and no other node gets the key until that caller gives it back.
func (k *keyring) claim(path, key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	own, ok := k.own.get(path, mostKeys)
	if !ok || own != key {
		return false
	}
	k.own.remove(path)
	return true
}
