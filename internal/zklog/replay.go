package zklog

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// A History has the states that committed transactions gave each node, by path, in order.
type History map[string][]Period

// A Period is a State of a node, and when it ended.
type Period struct {
	State
	Until   int64 // the transaction that ended it, 0 if none did
	version int32 // of the data
}

// Replay applies all transactions of an ensemble, from its first one on, to an empty tree. The
// error names the first one that the tree refuses. A leader writes a transaction only after it
// has checked it against its own tree, so an error means that the tree of the leader was not the result
// of the earlier transactions: the leader lost some of them or applied them out of order. No client can
// cause that.
func Replay(txns []Txn) (History, error) {
	h := make(History)
	for _, x := range txns {
		for _, op := range x.Ops {
			if isOfServers(op.Path) {
				continue
			}
			is := h.now(op.Path)
			switch {
			case op.IsCreate():
				if is != nil {
					return nil, fmt.Errorf("zklog: transaction %#x creates %s, which is there", x.Zxid, op.Path)
				}
				if parent := path.Dir(op.Path); parent != "/" && h.now(parent) == nil {
					return nil, fmt.Errorf("zklog: transaction %#x creates %s, whose parent is missing", x.Zxid, op.Path)
				}
				h[op.Path] = append(h[op.Path], Period{State: State{x.Zxid, x.Zxid}})
			case is == nil && (x.Type == CloseSession || op.Path == "/"):
				// No transaction created the root, so it has no state. The end of a session may name a deleted node.
			case is == nil:
				return nil, fmt.Errorf("zklog: transaction %#x, operation %d, needs %s, which is missing", x.Zxid, op.Type, op.Path)
			case x.Type == CloseSession, op.IsDelete():
				is.Until = x.Zxid
			case op.Type == SetData:
				if op.Version != is.version+1 {
					return nil, fmt.Errorf("zklog: transaction %#x gives %s the version %d after %d", x.Zxid, op.Path, op.Version, is.version)
				}
				is.Until = x.Zxid
				h[op.Path] = append(h[op.Path], Period{State: State{is.Czxid, x.Zxid}, version: op.Version})
			}
		}
	}
	return h, nil
}

// isOfServers reports whether servers have a node at path that no transaction made.
func isOfServers(path string) bool {
	return path == "/zookeeper" || strings.HasPrefix(path, "/zookeeper/")
}

// now returns the latest state of the node at path, or nil if there is no node.
func (h History) now(path string) *Period {
	if list := h[path]; len(list) > 0 && list[len(list)-1].Until == 0 {
		return &list[len(list)-1]
	}
	return nil
}

// Made reports whether a transaction gave the node at path a state whose Mzxid is mzxid.
func (h History) Made(path string, mzxid int64) bool {
	return slices.ContainsFunc(h[path], func(p Period) bool { return p.Mzxid == mzxid })
}

// Had reports whether the node at path had the state.
func (h History) Had(path string, s State) bool {
	return slices.ContainsFunc(h[path], func(p Period) bool { return p.State == s })
}

// Outdated describes a node of a snapshot whose state had ended by the time of the snapshot, or returns
// "". The server that wrote it shows its clients a deleted node or old data, and no later transaction
// corrects that.
//
// A snapshot can also lack nodes, and have nodes that no committed transaction created. That proves
// nothing: it has some of the later transactions, and can have proposals that were never committed.
func (h History) Outdated(s Snapshot) string {
	for _, path := range slices.Sorted(maps.Keys(s.Nodes)) {
		is, last := s.Nodes[path], Period{}
		for _, p := range h[path] {
			// A server that still has a deleted node ignores its next creation, and applies later
			// writes to the old node. So Mzxid can be later than the last period of this creation.
			if p.Czxid == is.Czxid && p.Mzxid <= is.Mzxid {
				last = p
			}
		}
		if last.Until != 0 && last.Until <= s.Zxid {
			return fmt.Sprintf("a snapshot at %#x has %s as of %#x, created in %#x, which ended in %#x", s.Zxid, path, is.Mzxid, is.Czxid, last.Until)
		}
	}
	return ""
}
