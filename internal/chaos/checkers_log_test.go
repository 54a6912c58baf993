//go:build linux

package chaos

import (
	"fmt"
	"slices"
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

func TestAnEpochEndsWhereTheNextLeaderContinues(t *testing.T) {
	const line = "02:10:55.713 [LearnerHandler-/127.0.0.1:57930] INFO LearnerHandler - Synchronizing with Learner sid: 3 maxCommittedLog=0x600000264 minCommittedLog=0x400000001 lastProcessedZxid=0x6000002%d peerLastZxid=0x60000023a\n"
	ends := make(map[int64]int64)
	endsOf([]byte(fmt.Sprintf(line, 64)+"something else\n"+fmt.Sprintf(line, 63)), ends)
	if len(ends) != 1 || ends[6] != 0x600000264 {
		t.Errorf("%#x", ends)
	}
}

func TestTheLogsOfServersAreMergedWithoutHoles(t *testing.T) {
	log := func(zxids ...int64) (list []zklog.Txn) {
		for _, z := range zxids {
			list = append(list, zklog.Txn{Zxid: z})
		}
		return list
	}
	const two = 2 << 32
	for _, tc := range []struct {
		name string
		logs [][]zklog.Txn
		ends map[int64]int64
		want []int64
		fail bool
	}{
		{"whole", [][]zklog.Txn{log(1, 2, two+1), log(1, 2, two+1), nil}, nil, []int64{1, 2, two + 1}, false},
		{"a hole", [][]zklog.Txn{log(1, 4, two+2), log(1, 2, 3, two+2), log(4, two+1)}, nil, []int64{1, 2, 3, 4, two + 1, two + 2}, false},
		{"a transaction of only one server", [][]zklog.Txn{log(1, 2, 3, two+1), log(1, 2, two+1), log(two+1, two+2)}, nil, []int64{1, 2, two + 1}, false},
		{"a transaction that the next leader does not have", [][]zklog.Txn{log(1, 2, 3, two+1), log(1, 2, 3, two+1), nil}, map[int64]int64{0: 2}, []int64{1, 2, two + 1}, false},
		{"a transaction that only the next leader has", [][]zklog.Txn{log(1, 2, 3, two+1), log(1, 2, two+1), nil}, map[int64]int64{0: 3}, []int64{1, 2, 3, two + 1}, false},
		{"the last epoch, without a next leader", [][]zklog.Txn{log(1, two+1, two+2), log(1, two+1, two+2), nil}, map[int64]int64{2: two + 1}, []int64{1, two + 1, two + 2}, false},
		{"a hole that no server fills", [][]zklog.Txn{log(1, 3), log(1, 3), nil}, nil, nil, true},
	} {
		got, err := merge(tc.logs, tc.ends)
		var zxids []int64
		for _, x := range got {
			zxids = append(zxids, x.Zxid)
		}
		if (err != nil) != tc.fail || !slices.Equal(zxids, tc.want) {
			t.Errorf("%s: %#x, %v", tc.name, zxids, err)
		}
	}
}
