package zklog

import (
	"strings"
	"testing"
)

func TestAReplayFindsWhatATreeRefuses(t *testing.T) {
	single := func(op Op) Txn { return Txn{Type: op.Type, Ops: []Op{op}} }
	create := func(p string) Txn { return single(Op{Type: Create, Path: p}) }
	remove := func(p string) Txn { return single(Op{Type: Delete, Path: p}) }
	check := func(p string) Txn { return single(Op{Type: Check, Path: p}) }
	set := func(p string, version int32) Txn { return single(Op{Type: SetData, Path: p, Version: version}) }
	end := func(p string) Txn { return Txn{Type: CloseSession, Ops: []Op{{Type: Delete, Path: p}}} }
	both := func(a, b Txn) Txn { return Txn{Type: Multi, Ops: append(append([]Op{}, a.Ops...), b.Ops...)} }
	refused := Txn{Type: Error, Err: -101}
	for _, tc := range []struct {
		name string
		txns []Txn
		want string // part of the error; "" if there is none
	}{
		{"nothing", nil, ""},
		{"a life", []Txn{create("/a"), create("/a/b"), check("/a/b"), set("/a", 1), set("/a", 2), refused, remove("/a/b"), remove("/a"), create("/a"), set("/a", 1)}, ""},
		{"in one transaction", []Txn{both(create("/a"), create("/a/b")), both(set("/a", 1), set("/a", 2)), both(remove("/a/b"), remove("/a"))}, ""},
		{"the end of a session", []Txn{create("/a"), end("/a"), end("/a"), create("/a")}, ""},
		{"a node that only servers make", []Txn{set("/zookeeper/config", 7)}, ""},
		{"a node twice", []Txn{create("/a"), create("/a")}, "creates /a, which is there"},
		{"a child without a parent", []Txn{create("/a/b")}, "creates /a/b, whose parent is missing"},
		{"a check of a deleted node", []Txn{create("/a"), remove("/a"), check("/a")}, "needs /a, which is missing"},
		{"a delete twice", []Txn{create("/a"), remove("/a"), remove("/a")}, "needs /a, which is missing"},
		{"a set of a missing node", []Txn{set("/a", 1)}, "needs /a, which is missing"},
		{"a version twice", []Txn{create("/a"), set("/a", 1), set("/a", 1)}, "gives /a the version 1 after 1"},
		{"the second part", []Txn{create("/a"), both(check("/a"), check("/b"))}, "needs /b, which is missing"},
	} {
		for i := range tc.txns {
			tc.txns[i].Zxid = int64(i + 1)
		}
		_, err := Replay(tc.txns)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}
