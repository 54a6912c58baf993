package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/memory"
)

// queueRates returns a result of a queue that is compared.
func queueRates(what, who, crash string, consumers, rate float64) *result {
	r := rates(name{queuesCompared, what, who, onZooKeeper, "consumers", consumers}, rate)
	r.Crash = crash
	return r
}

func backlogRates(what, who, crash string, consumers, rate float64) *result {
	r := queueRates(what, who, crash, consumers, rate)
	r.Group = queueBacklogs
	return r
}

func TestALedgerFindsEachItemThatWasNotTakenOnce(t *testing.T) {
	t.Parallel()
	l := &ledger{size: 10}
	items := append(l.put(2), l.put(1)...)
	if items[0] != "0000000000" || items[2] != "0000000002" {
		t.Fatalf("the items are %q", items)
	}
	if err := l.take([]string{items[1], items[0]}); err != nil {
		t.Error(err)
	}
	if err := l.check(0); err == nil || err.Error() != "item 2 was put and not taken" {
		t.Errorf("an item is missing: error %v", err)
	}
	for item, want := range map[string]string{
		items[1]:      "item 1 was taken twice",
		"0000000003":  `"0000000003" was taken and never put`,
		"-000000001":  `"-000000001" was taken and never put`,
		"1":           `"1" was taken and never put`,
		"not an item": `"not an item" was taken and never put`,
	} {
		if err := l.take([]string{item}); err == nil || err.Error() != want {
			t.Errorf("%q was taken: error %v, want %s", item, err, want)
		}
	}
	if err := l.take(items[2:]); err != nil {
		t.Error(err)
	}
	if err := l.check(0); err != nil {
		t.Error(err)
	}
	if err := l.check(1); err == nil || err.Error() != "1 items are in the queue, and all 3 were taken" {
		t.Errorf("an item is left: error %v", err)
	}
}

// Every way to use a queue of coord yields its figures, whoever takes an item first.
func TestConsumersTakeEachItemOnce(t *testing.T) {
	t.Parallel()
	p := &place{where: onMemory, store: memory.New(&memory.Options{SessionTimeout: time.Minute})}
	defer p.Close()
	const batch = 5
	for what, open := range map[string]opener{
		whatTake: p.takers(ours), whatPop: p.poppers(ours), whatPrefetch: p.prefetchers(ours),
	} {
		for n, path := range map[int]string{1: "/one/" + what[:3], 3: "/three/" + what[:3]} {
			s, err := inProcess(open)(t.Context(), path, n, batch, 20*time.Millisecond)
			if err != nil {
				t.Errorf("%s with %d consumers: %v", what, n, err)
				continue
			}
			if turns, before := s[mDone], s[mRate]; turns < float64(n) || s[mP50] <= 0 || s.perItem(batch)[mRate] != before*batch {
				t.Errorf("%s with %d consumers: %v", what, n, s)
			}
		}
	}
}

// A list is a queue in memory that does not do what it should.
type list struct {
	items   []string
	invents bool // takes an item that was not put
	keeps   bool // hands an item out and keeps it
	stays   int  // items that are never taken
	fails   error
}

func (l *list) put(_ context.Context, items []string) error {
	l.items = append(l.items, items...)
	return nil
}

func (l *list) take(_ context.Context, n int) ([]string, error) {
	items := l.items[:n]
	if !l.keeps {
		l.items = l.items[n:]
	}
	if l.invents {
		items = []string{"new"}
	}
	return items, l.fails
}

func (l *list) giveBack() {}

func (l *list) left(context.Context) (int, error) { return len(l.items) + l.stays, nil }

func TestACellFailsUnlessEachItemIsTakenOnce(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]*list{
		"take: no luck":                                  {fails: errors.New("no luck")},
		`"new" was taken and never put`:                  {invents: true},
		"item 0 was taken twice":                         {keeps: true},
		"2 items are in the queue, and all 2 were taken": {stays: 2},
	} {
		open := func(context.Context, string, int, int) ([]consumer, error) { return []consumer{l}, nil }
		// The first turn prepares, and the second one takes longer than the time.
		_, err := inProcess(open)(t.Context(), "/q", 1, 1, time.Nanosecond)
		if err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestAPeerTakesTurns(t *testing.T) {
	f := startTestForeign(t)
	e := &env{root: "/bench", direct: &place{addrs: []string{"a:1"}}}
	s, err := f.turner(e, "plain")(t.Context(), "/q", 8, 10, time.Second)
	if err != nil || s[mRate] != 50 || s.perItem(10)[mRate] != 500 || s[mP50] != 1 {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := f.drain(t.Context(), e, "plain", "/q", load{consumers: 8, items: 100}); err != nil || s[mRate] != 50 {
		t.Errorf("%v, %v", s, err)
	}
}

// The consumers of coord take all items of a load, whether the items are there before or come one by one.
func TestConsumersTakeALoad(t *testing.T) {
	t.Parallel()
	p := &place{where: onMemory, store: memory.New(&memory.Options{SessionTimeout: time.Minute})}
	defer p.Close()
	for i, l := range []load{{1, 0, 20}, {3, 0, 20}, {1, 1, 20}, {3, 2, 21}} {
		if s, err := l.run(t.Context(), p.handlers(ours, 1), fmt.Sprintf("/load-%d", i)); err != nil || s[mRate] <= 0 {
			t.Errorf("%+v: %v, %v", l, s, err)
		}
	}
}

func (l *list) drain(ctx context.Context, d *drainage) error {
	for d.next() {
		items, err := l.take(ctx, 1)
		if err == nil {
			err = d.took(items[0])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func TestALoadFailsUnlessEachItemIsTakenOnce(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]*list{
		"take: no luck":                                  {fails: errors.New("no luck")},
		`take: "new" was taken and never put`:            {invents: true},
		"take: item 0 was taken twice":                   {keeps: true},
		"2 items are in the queue, and all 3 were taken": {stays: 2},
	} {
		open := func(context.Context, string, int) ([]drainer, error) { return []drainer{l, l}, nil }
		if _, err := (load{consumers: 1, items: 3}).run(t.Context(), open, "/q"); err == nil || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestRequestsOfEtcdAreAdded(t *testing.T) {
	t.Parallel()
	const metrics = `# HELP grpc_server_msg_received_total Total number of messages received on the server.
# TYPE grpc_server_msg_received_total counter
grpc_server_msg_received_total{grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"} 12
grpc_server_msg_received_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 3e+02
grpc_server_msg_received_total_of_another 7
grpc_server_msg_sent_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 1000
`
	if sum, known := sumOf("grpc_server_msg_received_total", strings.NewReader(metrics)); !known || sum != 312 {
		t.Errorf("the sum is %v, %v", sum, known)
	}
	if _, known := sumOf("nothing", strings.NewReader(metrics)); known {
		t.Error("a metric that does not exist is known")
	}
	if _, known := sumOf("m", strings.NewReader("m many\n")); known {
		t.Error("a metric without a number is known")
	}
}

func TestQueuesAreJudgedByWhatACrashDoes(t *testing.T) {
	t.Parallel()
	targets := judge([]*result{
		queueRates(whatTaking, byRaw, crashNothing, 1, 400),
		queueRates(whatPopping, byRaw, crashNothing, 1, 1000),
		queueRates(whatTake, byCoord, crashRedelivers, 1, 300),
		queueRates(whatPop, byCoord, crashLoses, 1, 900),
		queueRates(whatSimple, byCurator, crashLoses, 1, 200),
		queueRates(whatQueue, byKazoo, crashLoses, 1, 250),
		queueRates(whatLocked, byCurator, crashRedeliversLate, 1, 200),
		queueRates(whatLocked+inBatches, byCurator, crashRedeliversLate, 1, 5000),
		queueRates(whatLocking, byKazoo, crashRedelivers, 1, 100),
		queueRates(whatTake, byCoord, crashRedelivers, 8, 300),
		queueRates(whatLocking, byKazoo, crashRedelivers, 8, 100),
		backlogRates(whatHandler, byCoord, crashRedelivers, 1, 300),
		backlogRates(whatStocked, byCoord, crashRedelivers, 1, 500),
		backlogRates(whatRawWork, byRaw, crashNothing, 1, 400),
		backlogRates(whatRawTake, byRaw, crashNothing, 1, 1000),
		backlogRates(whatSimple, byCurator, crashLoses, 1, 200),
		backlogRates(whatLocking, byKazoo, crashRedelivers, 1, 100),
		backlogRates(whatHandler, byCoord, crashRedelivers, 8, 300),
		backlogRates(whatSimple, byCurator, crashLoses, 8, 200),
		backlogRates(whatLocking, byKazoo, crashRedelivers, 8, 100),
	})
	var got []string
	for _, x := range targets {
		if strings.HasPrefix(x.Name, "items one at a time") || strings.HasPrefix(x.Name, "items popped") || strings.HasPrefix(x.Name, "items of a backlog") {
			got = append(got, x.String())
		}
	}
	want := []string{
		"items one at a time, 1 consumers, times the fastest peer that can lose an item: 1.2, want ≥ 1: met",
		"items one at a time, 1 consumers, times the fastest peer that never loses an item: 1.5, want ≥ 2: NOT MET",
		"items popped, 1 consumers, times the fastest peer that can lose an item: 3.6, want ≥ 1: met",
		"items one at a time, 8 consumers, times the fastest peer that can lose an item: want ≥ 1, not measured",
		"items one at a time, 8 consumers, times the fastest peer that never loses an item: 3, want ≥ 2: met",
		"items popped, 8 consumers, times the fastest peer that can lose an item: want ≥ 1, not measured",
		"items of a backlog, 1 consumers, times the fastest peer that can lose an item: 1.5, want ≥ 1.2: met",
		"items of a backlog, 8 consumers, times the fastest peer that can lose an item: 1.5, want ≥ 1.7: NOT MET",
		"items of a backlog, 8 consumers, times the fastest peer that never loses an item: 3, want ≥ 2: met",
		"items of a backlog with Prefetch, 1 consumers, times the fastest peer that can lose an item: 2.5, want ≥ 1.2: met",
		"items of a backlog, 1 consumers, as a part of its commits without a queue: 0.75, want ≥ 0.85: NOT MET",
		"items one at a time, 1 consumers, as a part of the same requests without a queue: 0.75, want ≥ 0.85: NOT MET",
		"items popped, 1 consumers, as a part of the same requests without a queue: 0.9, want ≥ 0.85: met",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the targets are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Every queue that is compared yields its figures on servers. Peers that are not installed
// are skipped.
func TestEachComparedQueueYieldsItsFigures(t *testing.T) {
	requireZooKeeper(t)
	dir := t.TempDir()
	var out, notes strings.Builder
	if code := run(t.Context(), []string{"-quick", "-peers", "-run", "^(" + strings.Join([]string{queuesCompared, queueBacklogs, queueLoops}, "|") + ")$", "-out", dir}, &out, &notes); code != 0 {
		t.Fatalf("exit code %d:\n%s\n%s", code, out.String(), notes.String())
	}
	r, err := readReport(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	// With 1 and 8 consumers, or with 1, 4 and 8 producers; coord on two services.
	cells := map[string]int{byRaw: 6 + 2, byCoord: 12 + 8 + 6, byCurator: 12 + 6 + 9, byKazoo: 8 + 4 + 3, byEtcd: 4 + 2 + 3}
	for _, x := range r.Missing {
		delete(cells, x.Who)
	}
	for _, x := range r.Results {
		cells[x.Who]--
		if x.Crash == "" {
			t.Errorf("%s: nothing is said about a crash", x.name)
		}
		// A turn of one item takes at least a put, a read and a deletion.
		least := map[metric]float64{mRate: 1, mP50: 100, mPackets: 3}
		if isBatched(x.What) {
			least[mPackets] = 0.1
		}
		if x.Group != queuesCompared {
			delete(least, mP50)
			least[mPackets] = 1.9 // a read and a deletion
			switch x.What {
			case whatHandler, whatRawWork:
				least[mPackets] = 1 // a commit; many items are read in one request
			case whatStocked:
				least[mPackets] = 0.1
			}
		}
		for m, least := range least {
			if f := x.Figures[m]; f.Median < least {
				t.Errorf("%s: %s is %v, want at least %v", x.name, m, f.Median, least)
			}
		}
	}
	for who, n := range cells {
		if n != 0 {
			t.Errorf("%d cells of %s too few", n, who)
		}
	}
	if !strings.Contains(out.String(), titleCrash) {
		t.Errorf("the table has no column for crashes:\n%s", out.String())
	}
}
