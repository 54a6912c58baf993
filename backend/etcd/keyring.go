package etcd

import (
	"strconv"
	"strings"
	"sync"
)

// keyring gives the new sequential nodes of a session their keys. The key of an ephemeral one is used
// again for another ephemeral one when the node that had it was deleted, and when no request can be under
// way that would write what has the key by then. Requests that compare the create revision never do. Two
// kinds compare less:
//
// The deletions of session.send compare nothing. Each needs a claim, of which there is one for each node,
// and which ends with its reply. A deletion that was not sent, or has lost its reply, keeps its claim for
// ever, and no other node gets the key.
//
// A creation does not compare its own key: it would overwrite a node that has it. So a key is taken back
// from a creation only if that has failed for certain, and a commit of unknown outcome is not sent again.
// And it compares its parent with no more than the flags of a node that is not ephemeral. So a node that
// is not has a key that none had before.
type keyring struct {
	session string // the same in all its keys

	mu     sync.Mutex
	serial int64
	free   generations[[]string] // by the prefixes of the keys
	own    generations[string]   // of ephemeral nodes of this session that nobody has claimed, by path
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

// giveBack takes keys back that no node has, and that no request under way is for.
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

// claim reports whether the caller is the one that may delete a key without a compare: it is that of
// the node at path, or of none, until the caller gives it back.
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
