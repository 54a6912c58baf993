//go:build linux

package chaos

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord/internal/zklog"
)

func TestSettlingFindsReportsThatTheLogsContradict(t *testing.T) {
	set := func(zxid int64, path, data string) zklog.Txn {
		return zklog.Txn{Zxid: zxid, Session: 7, Ops: []zklog.Op{{Type: zklog.SetData, Path: path, Data: []byte(data)}}}
	}
	do := func(work, op, kind string, e event) []event {
		e.Work, e.Op, e.N = work, op, 1
		b := e
		b.Kind = "begin"
		if kind == "" {
			return []event{b}
		}
		e.Kind = kind
		return []event{b, e}
	}
	item := zklog.Txn{Zxid: 1, Ops: []zklog.Op{{Type: zklog.Create, Path: queuePath + "/items/b-0-0/i-x-0-0000000000", Data: []byte("v")}}}
	acked := zklog.Txn{Zxid: 2, Type: zklog.Multi, Ops: []zklog.Op{
		{Type: zklog.Delete, Path: queuePath + "/items/b-0-0/i-x-0-0000000000"}, {Type: zklog.Delete, Path: "/m"},
	}}
	nacked := zklog.Txn{Zxid: 2, Type: zklog.Multi, Ops: []zklog.Op{{Type: zklog.Delete, Path: "/m"}}}
	expired := zklog.Txn{Zxid: 2, Session: 7, Type: zklog.CloseSession, Ops: []zklog.Op{{Type: zklog.Delete, Path: "/m"}}}
	again := item
	again.Zxid = 3
	again.Ops = []zklog.Op{{Type: zklog.Create, Path: queuePath + "/items/b-0-0/i-y-0-0000000001", Data: []byte("v")}}
	claim := event{ID: "x", Value: "v", Old: "/m"}
	for _, tc := range []struct {
		name    string
		events  []event
		log     []zklog.Txn
		want    string
		settled string
	}{
		{"a set that was reported wrongly", do("value", "set", "ok", event{Value: "v", Token: 4}), []zklog.Txn{set(5, valuePath, "v")}, "reported as the change 0x4", ""},
		{"a set that was applied", do("value", "set", "ok", event{Value: "v", Token: 5}), []zklog.Txn{set(5, valuePath, "v")}, "", ""},
		{"a set that was not", do("value", "set", "ok", event{Value: "v"}), nil, "reported but not applied", ""},
		{"a set that was applied twice", do("value", "set", "ok", event{Value: "v"}), []zklog.Txn{set(5, valuePath, "v"), set(6, valuePath, "v")}, "applied 2 times", ""},
		{"a set that was refused and applied", do("value", "cas", "no", event{Value: "v"}), []zklog.Txn{set(5, valuePath, "v")}, "refused but applied", ""},
		{"an uncertain set that was applied", do("value", "set", "unknown", event{Value: "v"}), []zklog.Txn{set(5, valuePath, "v")}, "", "applied"},
		{"a set that never returned and was not", do("value", "set", "", event{Value: "v"}), nil, "", "not applied"},
		{"an addition", do("counter", "add", "ok", event{Token: 3, Num: 3}), []zklog.Txn{set(5, counterPath, "3")}, "", ""},
		{"an addition that was lost", do("counter", "add", "ok", event{Token: 3, Num: 3}), nil, "reported but not applied", ""},
		{"an addition made twice", do("counter", "add", "unknown", event{Token: 3}), []zklog.Txn{set(5, counterPath, "3"), set(6, counterPath, "6")}, "applied 2 times", "applied"},
		{"an addition reported wrongly", do("counter", "add", "ok", event{Token: 3, Num: 4}), []zklog.Txn{set(5, counterPath, "3")}, "became 3", ""},
		{"a put", do("queue", "put", "ok", event{Value: "v", ID: "x"}), []zklog.Txn{item}, "", ""},
		{"a put that was lost", do("queue", "put", "ok", event{Value: "v", ID: "x"}), nil, "reported but not put", ""},
		{"a put twice", do("queue", "put", "unknown", event{Value: "v", ID: "x"}), []zklog.Txn{item, again}, "put 2 times", "applied"},
		{"an ack", do("queue", "ack", "ok", claim), []zklog.Txn{item, acked}, "", ""},
		{"an ack that only gave it back", do("queue", "ack", "ok", claim), []zklog.Txn{item, nacked}, "reported but not applied", ""},
		{"an ack when the session had ended", do("queue", "ack", "ok", claim), []zklog.Txn{item, expired}, "reported but not applied", ""},
		{"an ack that is reported as lost", do("queue", "ack", "no", claim), []zklog.Txn{item, acked}, "reported as lost, but applied", ""},
		{"an ack that never returned", do("queue", "ack", "", claim), []zklog.Txn{item, acked}, "", "applied"},
		{"a nack that never returned", do("queue", "nack", "", claim), []zklog.Txn{item, expired}, "", "not applied"},
		{"a hold with another token", do("mutex", "acquire", "ok", event{ID: "/l", Token: 4, Session: 7}), []zklog.Txn{{Zxid: 5, Session: 7, Ops: []zklog.Op{{Type: zklog.Create, Path: "/l"}}}}, "with another creation of its node", ""},
		{"a release that left the node", do("mutex", "release", "ok", event{ID: "/l", Value: "/l"}), nil, "never deleted", ""},
		{"a release that never returned", do("mutex", "release", "", event{ID: "/m", Value: "/m"}), []zklog.Txn{nacked}, "", "applied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := history(t, "p", tc.events...)
			verdict(t, settle([]*process{p}, newLedger(tc.log)), tc.want)
			if got := p.calls[0].settled; got != tc.settled {
				t.Errorf("settled as %q, want %q", got, tc.settled)
			}
		})
	}
}

// A put that got no reply is in the logs of two servers when its leader is stopped. A server
// that has it is elected and finds no majority, and a third one leads the next epoch.
func TestAnItemIsLeftInTheQueueOnlyIfItsPutWasCommitted(t *testing.T) {
	const put, next = 0x1600001366, 0x1800000001
	const path = queuePath + "/items/b-0-51/i-00000000-0000-8000-8000-000000000001-0-0000000225"
	item := zklog.Txn{Zxid: put, Ops: []zklog.Op{{Type: zklog.Create, Path: path, Data: []byte("v")}}}
	var before []zklog.Txn
	for z := int64(0x1600000001); z < put; z++ {
		before = append(before, zklog.Txn{Zxid: z})
	}
	with := append(slices.Clone(before), item, zklog.Txn{Zxid: next})
	without := append(slices.Clone(before), zklog.Txn{Zxid: next})
	for _, tc := range []struct {
		name    string
		start   int64 // the last transaction in the tree of the next leader
		settled string
		want    string
	}{
		{"the next leader does not have it", put - 1, "not applied", ""},
		{"the next leader has it", put, "applied", "still in the queue"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log, err := zklog.Merge([][]zklog.Txn{with, without, with}, map[int64]int64{0x16: 0, 0x18: tc.start})
			if err != nil {
				t.Fatal(err)
			}
			p := history(t, "p", event{Kind: "begin", Work: "queue", Op: "put", ID: "x", Value: "v", N: 1})
			l := newLedger(log)
			verdict(t, settle([]*process{p}, l), "")
			if got := p.calls[0].settled; got != tc.settled {
				t.Errorf("settled as %q, want %q", got, tc.settled)
			}
			verdict(t, checkQueue(p.calls, nil, nil, livesOf(log, "queue", 0, nil, nil).byValue()), tc.want)
		})
	}
}

// A cache that told of an older state is wrong, unless a server had a tree that no committed
// transactions made.
func TestTheJudgeOfOlderStatesAsksWhatTheServersHad(t *testing.T) {
	const path = treePath + "/0"
	op := func(zxid int64, kind int32, path string, version int32) zklog.Txn {
		return zklog.Txn{Zxid: zxid, Type: kind, Ops: []zklog.Op{{Type: kind, Path: path, Version: version}}}
	}
	log := []zklog.Txn{
		op(1, zklog.Create, treePath, 0), op(2, zklog.Create, path, 0), op(3, zklog.SetData, path, 1), op(4, zklog.Delete, path, 0),
		op(5, zklog.Create, path, 0), op(6, zklog.SetData, path, 1),
	}
	// snapshot is one with a single node.
	snapshot := func(path string, czxid, mzxid uint64) string {
		b := append([]byte("ZKSN\x00\x00\x00\x02database"), make([]byte, 8)...) // no sessions, no permissions
		b = binary.BigEndian.AppendUint32(b, uint32(len(path)))
		b = append(append(b, path...), "\x00\x00\x00\x00permissi"...)
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, czxid), mzxid)
		return string(append(append(b, make([]byte, 44)...), "\x00\x00\x00\x01/"...))
	}
	older := func(told, czxid, mzxid int64) []event {
		return []event{{Kind: "older", ID: path, Since: told, Num: czxid, Token: mzxid}}
	}
	for _, tc := range []struct {
		name     string
		events   []event
		snapshot string // of a server, as of 6
		want     string
		broken   string
	}{
		{"nothing older", nil, snapshot(path, 5, 6), "", ""},
		{"old data", older(6, 5, 5), "", "was told of /tree/0 as of 0x6 and then as of 0x5", ""},
		{"a deleted node", older(5, 2, 3), snapshot(path, 5, 6), "was told of /tree/0 as of 0x5 and then as of 0x3, created in 0x2", ""},
		{"a deleted node that a server has", older(5, 2, 3), snapshot(path, 2, 3), "", "server 1: a snapshot at 0x6 has /tree/0 as of 0x3"},
		{"a change that was not committed", older(7, 5, 6), "", "", "no committed transaction left both"},
		{"a deleted node that was changed", older(6, 2, 6), "", "", "no committed transaction left both"},
		{"a server with old data that no cache told of", nil, snapshot(path, 5, 5), "", "server 1: a snapshot at 0x6 has /tree/0 as of 0x5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, all := t.TempDir(), []*process{history(t, "p", tc.events...)}
			if err := os.Mkdir(filepath.Join(dir, logDir(0)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, logDir(0), "snapshot.6"), []byte(tc.snapshot), 0o644); err != nil {
				t.Fatal(err)
			}
			h, err := zklog.Replay(log)
			if err != nil {
				t.Fatal(err)
			}
			broken, err := wrongTrees(dir, h, all)
			if err != nil || (broken == "") != (tc.broken == "") || !strings.Contains(broken, tc.broken) {
				t.Errorf("%q, %v, want %q", broken, err, tc.broken)
			}
			if tc.broken == "" {
				verdict(t, judge(all, log).wrong, tc.want)
			}
		})
	}
}

func TestAHistoryIsReadUpToALineThatIsCutShort(t *testing.T) {
	p, err := parseHistory("p", []byte(`{"at":5,"k":"begin","n":1,"w":"mutex","op":"acquire"}
{"at":6,"k":"begin","n":2,"w":"queue","op":"put"}
{"at":7,"k":"ok","n":2,"w":"queue","op":"put"}
{"at":8,"k":"begin","n":3,"w":"value","op":"set"}
{"at":9,"k":"unknown","n":3,"w":"value","op":"set"}
{"at":10,"k":"ok","n":1`))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.calls) != 3 || p.calls[2].outcome != "unknown" || p.calls[2].to != forever || p.calls[0].outcome != "unknown" || p.calls[0].to != forever || p.calls[1].to != 7 || p.ended != 9 {
		t.Errorf("%v", p.calls)
	}
	for _, bad := range []string{`{"at":5,"k":"ok","n":1}` + "\n", "nonsense\n", `{"at":5,"k":"beat"}` + "\n" + `{"at":4,"k":"beat"}` + "\n"} {
		if _, err := parseHistory("p", []byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
