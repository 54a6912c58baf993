package etcd

import (
	"context"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/zklog"
)

// Ordered reports whether a server of a version sends a progress reply after the events that it
// covers.
func Ordered(version string) bool { return isSince(version, 25, 8) }

// OpsOf returns what an event of a key changed in the tree, for tests that follow the keys. The
// event has the pair before it. owner is the session that an ephemeral node was created by, and
// ended the one that ended with this event.
func OpsOf(prefix string, e *mvccpb.Event) (ops []zklog.Op, owner, ended int64, err error) {
	c := &config{prefix: prefix}
	if id, ok := strings.CutPrefix(string(e.Kv.Key), prefix+":session/"); ok {
		if e.Type == mvccpb.DELETE {
			ended, err = strconv.ParseInt(id, 16, 64)
		}
		return nil, 0, ended, err
	}
	kv := e.Kv
	if e.Type == mvccpb.DELETE {
		kv = e.PrevKv
	}
	path, ok := c.pathOf(kv)
	if !ok || path == "/" {
		return nil, 0, 0, nil
	}
	if e.Type == mvccpb.DELETE {
		return []zklog.Op{{Type: zklog.Delete, Path: path}}, 0, 0, nil
	}
	r, err := decode(e.Kv)
	if err != nil {
		return nil, 0, 0, err
	}
	version := int32(0) // before the writes
	if r.newborn() {
		if r.created != r.mod { // it replaces another node
			ops = append(ops, zklog.Op{Type: zklog.Delete, Path: path})
		}
		ops, owner = append(ops, zklog.Op{Type: zklog.Create, Path: path, Data: r.data, Ephemeral: r.ephemeral(), Made: time.UnixMilli(r.ctime)}), r.lease
	} else {
		before, err := decode(e.PrevKv)
		if err != nil {
			return nil, 0, 0, err
		}
		version = before.version()
	}
	for version < r.version() { // a commit can write a node more than once
		version++
		ops = append(ops, zklog.Op{Type: zklog.SetData, Path: path, Data: r.data, Version: version})
	}
	return ops, owner, 0, nil
}

// SetAhead puts the wall clock of the sessions of a backend ahead.
func SetAhead(b backend.Backend, ahead func() time.Duration) {
	b.(*service).cfg.clock = func() func() contact.Instant {
		read := contact.Clock()
		return func() contact.Instant {
			now := read()
			now.Wall += ahead()
			return now
		}
	}
}

// Resolve makes the sessions of a backend find these addresses for each name.
func Resolve(b backend.Backend, addresses ...string) {
	b.(*service).cfg.lookup = func(context.Context, string) (all []netip.Addr, err error) {
		for _, a := range addresses {
			all = append(all, netip.MustParseAddr(a))
		}
		return all, nil
	}
}
