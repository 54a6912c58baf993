//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/proc"
)

// conclude ends all work, and returns the violations found then.
func (r *run) conclude() (wrong []string, over bool) {
	t := r.t
	t.Helper()
	for _, step := range []struct{ command, answer string }{{"finish", "finished"}, {"drain", "drained"}} {
		for _, a := range r.actors {
			a.tell(step.command)
		}
		for _, a := range r.actors {
			if err := r.concluded(a, step.answer); err != nil {
				// The judged logs do not contain what the clients would do from here on.
				for _, a := range r.actors {
					a.worker().Kill()
				}
				return []string{"after everything was healed: " + err.Error()}, false
			}
		}
	}
	s := r.session()
	defer s.Close()
	wrong = append(wrong, r.copies(s)...)
	for _, a := range r.actors {
		if err := a.quit(); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	wrong = append(wrong, r.leftovers(s)...)
	return wrong, true
}

// concluded waits for a client's answer. On a busy machine that takes long, and a draining
// client reports by itself that it makes no progress, so there is much time. But a client
// that waits for a ghost will never answer.
func (r *run) concluded(a *actor, answer string) error {
	const most = 10
	for i := 1; ; i++ {
		err := a.await(answer, 1, limit)
		if err == nil {
			return nil
		}
		ghosts := r.ghosts()
		if i == most || ghosts != "" || !errors.Is(err, proc.ErrSilent) {
			return fmt.Errorf("%w%s", err, ghosts)
		}
	}
}

// compareServers describes the differences between the servers' trees. No client can cause
// one: a server that was restarted can have applied proposals that were never committed, see
// zklog.Merge.
func (r *run) compareServers() string {
	if r.other != nil {
		return "" // its reads are linearizable
	}
	var servers []backend.Backend
	for _, addr := range r.e.Addrs() {
		servers = append(servers, backendAt([]string{addr}, 20*tick, 0))
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	d, err := coordtest.CompareServers(ctx, servers, "", 1,
		treePath, queuePath, txnPath, "/values", "/locks", "/jobs", electionPath, groupPath, shardsPath, queuePaths["priority"], queuePaths["delay"])
	if err != nil {
		r.t.Error(err)
	}
	if d != "" {
		d = "the servers disagree: " + d
	}
	return d
}

// copies compares the caches with the tree, what the clients know of the group with its members,
// and the shards that they own with the owners.
func (r *run) copies(s backend.Session) (wrong []string) {
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	c, err := coord.Open(ctx, backendAt(r.servers().Addrs(), 20*tick, 0), nil)
	if err != nil {
		return []string{err.Error()}
	}
	defer c.Close()
	_ = until("the copies equal the tree, the group its members, and each shard has its owner", limit, func() bool {
		wrong = nil
		tree, err := coordtest.ReadTree(r.t.Context(), s, "", treePath, 1)
		if err != nil {
			wrong = []string{err.Error()}
			return false
		}
		members, err := realMembers(r.t.Context(), s)
		if err == nil && len(members) != len(r.actors) {
			err = fmt.Errorf("the group has the members %+v", members)
		}
		if err != nil {
			wrong = []string{err.Error()}
			return false
		}
		owned := make(map[string]map[int]int64)
		for _, a := range r.actors {
			got, err := a.look()
			if err != nil {
				wrong = []string{err.Error()}
				return true
			}
			wrong = append(wrong, checkCopy(a.name, got, tree)...)
			wrong = append(wrong, checkMembers(a.name, got.Members, members)...)
			owned[a.name] = got.Shards
		}
		owners, err := coord.NewShards(c, shardsPath, shardCount, nil).Owners(r.t.Context())
		if err != nil {
			wrong = append(wrong, err.Error())
		}
		wrong = append(wrong, checkShards(owned, owners)...)
		return len(wrong) == 0
	})
	return wrong
}

// leftovers returns the nodes that remain after all clients have ended.
func (r *run) leftovers(s backend.Session) []string {
	ctx := r.t.Context()
	var left []string
	var cause error
	err := until("no node is left behind", limit, func() bool {
		var tree map[string]coordtest.NodeState
		if tree, cause = coordtest.ReadTree(ctx, s, "", "/", 1); cause != nil {
			return false
		}
		left = leftIn(tree)
		return len(left) == 0
	})
	if err == nil {
		return nil
	}
	return []string{fmt.Sprintf("left behind: %q %v", left, cause)}
}

// leftIn returns the nodes that are ephemeral or should be deleted.
func leftIn(tree map[string]coordtest.NodeState) (left []string) {
	for path, n := range tree {
		if n.Owner != 0 || isLeft(path) {
			left = append(left, path)
		}
	}
	slices.Sort(left)
	return left
}

// isLeft reports whether a node that is not ephemeral should be deleted when no client uses
// anything.
func isLeft(path string) bool {
	parent := path[:strings.LastIndexByte(path, '/')]
	switch parent {
	case mutexPath, rwPath, electionPath, semaphorePath + "/requests", txnPath + "/tx":
		return true
	}
	// Items are below their buckets, branches below their sites.
	above := parent[:max(0, strings.LastIndexByte(parent, '/'))]
	for _, at := range queuePaths {
		if parent == at+"/waiters" || parent == at+"/producers" || above == at+"/dead/items" || above == at+"/items" {
			return true
		}
		// There is no bucket of dead letters where none can be.
		if parent == at+"/dead/items" && at != queuePaths["priority"] {
			return true
		}
	}
	return above == txnPath+"/sites"
}
