package recipetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/layout"
)

// Random calls of two clients, against a model: which items are in the queue, which are dead letters, and which item has each key
// until when. Requests and replies are lost, time passes, the clock of the service is set, and an outsider deletes nodes of which
// the guide says what that does to a key.
func TestQueue_KeysAgainstAModel(t *testing.T) {
	for seed := range uint64(coordtest.Count(30, 2000)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			onMemory(t, func(w *world) { newKeysModel(w, seed).play(120) })
		})
	}
}

// keysItem is an item of the model.
type keysItem struct {
	id    string
	n     int    // its value
	key   string // "": none, or an outsider has deleted k
	until time.Time
	most  int              // its MaxAttempts
	taken int              // attempts
	claim *coord.Item[int] // nil: it waits

	untagged bool // an outsider has deleted k since it was claimed: its move to the dead letters is no subject of the model
}

// keysHolder is the item that has a key.
type keysHolder struct {
	id     string
	until  time.Time // zero: none
	queued bool
}

type keysModel struct {
	w      *world
	r      *rand.Rand
	t      *testing.T
	c      [2]*coord.Client
	q      [2]*coord.Queue[int]
	faults [2]*[2]coordtest.Nth // lost requests and lost replies of each client
	ahead  time.Duration        // of the clock of the service
	keys   []string             // their nodes are in one directory, so a put of any of them collects
	queue  map[string]*keysItem // by id
	dead   map[string]*keysItem
	holder map[string]*keysHolder // by key
	stale  map[string]bool        // keys whose h an outsider's deletion of k has left behind
	step   int
	did    []string
}

const keysMostAttempts = 2

func newKeysModel(w *world, seed uint64) *keysModel {
	m := &keysModel{
		w: w, r: rand.New(rand.NewPCG(seed, 7)), t: w.T, keys: sameShard(5), queue: make(map[string]*keysItem), dead: make(map[string]*keysItem),
		holder: make(map[string]*keysHolder), stale: make(map[string]bool),
	}
	w.setClock(0)
	for i := range m.q {
		x := new([2]coordtest.Nth)
		m.faults[i] = x
		m.c[i] = w.collecting(fmt.Sprint("client", i), i == 0, &backendtest.Hooks{Before: x[0].Before, After: x[1].After})
		m.q[i] = coord.NewQueue(m.c[i], "/q", &coord.QueueOptions[int]{MaxAttempts: keysMostAttempts})
		*coordtest.Inside(&m.q[i].Consumer).BucketSize = 6
	}
	return m
}

func (m *keysModel) fatal(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("step %d: %s\n%s", m.step, fmt.Sprintf(format, args...), strings.Join(m.did, "\n"))
}

func (m *keysModel) say(format string, args ...any) {
	m.did = append(m.did, fmt.Sprintf("%d: ", m.step)+fmt.Sprintf(format, args...))
}

// now returns the time by the service's clock.
func (m *keysModel) now() time.Time { return time.Now().Add(serviceAhead + m.ahead) }

// user returns the id of the item that has the key, or "".
func (m *keysModel) user(key string) string {
	if h := m.holder[key]; h != nil && (h.queued || m.now().Before(h.until)) {
		return h.id
	}
	return ""
}

// out notes that an item has left the queue. With free its key is free, whatever its time.
func (m *keysModel) out(it *keysItem, free bool) {
	delete(m.queue, it.id)
	if it.key == "" {
		return
	}
	if h := m.holder[it.key]; free || h.until.IsZero() {
		delete(m.holder, it.key)
	} else {
		h.queued = false
	}
}

// pick returns a random element: nil if there is none.
func (m *keysModel) pick(from map[string]*keysItem, which func(it *keysItem) bool) *keysItem {
	var some []*keysItem
	for _, it := range from {
		if which(it) {
			some = append(some, it)
		}
	}
	if len(some) == 0 {
		return nil
	}
	slices.SortFunc(some, func(a, b *keysItem) int { return a.n - b.n })
	return some[m.r.IntN(len(some))]
}

func anyItem(*keysItem) bool      { return true }
func isClaimed(it *keysItem) bool { return it.claim != nil }
func isWaiting(it *keysItem) bool { return it.claim == nil }

// came notes that an item is in the queue.
func (m *keysModel) came(it *keysItem) {
	m.queue[it.id] = it
	if it.key != "" {
		m.holder[it.key] = &keysHolder{it.id, it.until, true}
		delete(m.stale, it.key)
	}
}

// newItem returns an item with random options.
func (m *keysModel) newItem(key string) (*keysItem, *coord.PutOptions) {
	o := &coord.PutOptions{Key: key, KeyFor: time.Duration(m.r.IntN(3)) * time.Hour, MaxAttempts: 3 * m.r.IntN(2)}
	it := &keysItem{n: m.step, key: key, most: max(o.MaxAttempts, keysMostAttempts)}
	if o.KeyFor > 0 {
		it.until = m.now().Add(o.KeyFor)
	}
	return it, o
}

// wantPut checks the result of a put with a key.
func (m *keysModel) wantPut(it *keysItem, id string, err error) {
	m.t.Helper()
	switch user := m.user(it.key); {
	case user != "" && (id != user || !errors.Is(err, coord.ErrExists)):
		m.fatal("%q has the key, the put returns %q, %v", user, id, err)
	case user != "":
	case err != nil || m.queue[id] != nil || m.dead[id] != nil || id == "":
		m.fatal("the key is free, the put returns %q, %v", id, err)
	default:
		it.id = id
		m.came(it)
	}
}

func (m *keysModel) put(q *coord.Queue[int]) {
	it, o := m.newItem(m.keys[m.r.IntN(len(m.keys))])
	switch {
	case m.r.IntN(8) == 0:
		m.say("put %d without a key", it.n)
		id, err := q.Put(context.Background(), it.n)
		it.key, it.until, it.most = "", time.Time{}, keysMostAttempts
		m.wantPut(it, id, err)
	case m.r.IntN(3) == 0:
		m.say("put %d once with %s", it.n, it.key)
		id, put, err := q.PutOnce(context.Background(), it.key, it.n)
		if err == nil && !put {
			err = coord.ErrExists
		}
		it.until, it.most = time.Time{}, keysMostAttempts
		m.wantPut(it, id, err)
	default:
		m.say("put %d with %+v", it.n, *o)
		id, err := q.PutWith(context.Background(), it.n, o)
		m.wantPut(it, id, err)
	}
}

// take claims an item, if there is one.
func (m *keysModel) take(q *coord.Queue[int]) {
	claim, err := q.TryTake(context.Background())
	waits := m.pick(m.queue, isWaiting) != nil
	if err != nil {
		m.say("take nothing")
		if waits || !errors.Is(err, coord.ErrEmpty) {
			m.fatal("%v although an item waits: %t", err, waits)
		}
		return
	}
	m.say("take %d", claim.Value)
	it := m.queue[claim.ID]
	if it == nil || it.claim != nil || it.n != claim.Value || claim.Attempt != it.taken+1 {
		m.fatal("took %+v, want a waiting item: %+v", claim, it)
	}
	it.claim, it.taken = claim, claim.Attempt
}

// end ends a claim.
func (m *keysModel) end() {
	it := m.pick(m.queue, isClaimed)
	if it == nil {
		return
	}
	claim := it.claim
	var err error
	switch how := m.r.IntN(5); {
	case how < 2:
		m.say("ack %d", it.n)
		if err = claim.Ack(); m.r.IntN(2) == 0 {
			err = errors.Join(err, claim.Ack())
		}
		m.out(it, false)
	case how < 4 && !(it.untagged && it.taken == it.most):
		m.say("nack %d", it.n)
		if err = claim.Nack(0); it.taken == it.most {
			m.out(it, true)
			m.dead[it.id] = it
			it.taken = 0
		}
	default:
		m.say("release %d", it.n)
		err = claim.Release()
		it.taken--
	}
	it.claim, it.untagged = nil, false
	if err != nil {
		m.fatal("%v", err)
	}
}

// follow acknowledges an item and puts another one in one transaction.
func (m *keysModel) follow(who int) {
	it := m.pick(m.queue, isClaimed)
	if it == nil {
		return
	}
	next, o := m.newItem(cmp.Or(it.key, m.keys[m.r.IntN(len(m.keys))]))
	m.say("acknowledge %d and put %d with %+v", it.n, next.n, *o)
	user := m.user(next.key)
	if user == it.id && !m.now().Before(m.holder[next.key].until) {
		user = "" // the AckOp frees the key
	}
	_, err := coord.NewTxn(m.c[who]).Add(it.claim.AckOp(), m.q[who].PutOpWith(next.n, o)).Commit(context.Background())
	switch {
	case user != "" && (!errors.Is(err, coord.ErrExists) || !errors.Is(err, coord.ErrConflict) || it.claim.Err() != nil):
		m.fatal("%q has the key, the transaction returns %v, and the claim is %v", user, err, it.claim.Err())
	case user != "":
	case err != nil:
		m.fatal("%v", err)
	default:
		m.out(it, false)
		it.claim = nil
		h, ok := m.readHolder(next.key)
		if !ok || m.queue[h.ID] != nil {
			m.fatal("%+v has the key, want the new item", h)
		}
		next.id = h.ID
		m.came(next)
	}
}

// pop pops an item, if there is one.
func (m *keysModel) pop(q *coord.Queue[int]) {
	if m.pick(m.queue, isWaiting) == nil {
		return
	}
	n, err := q.Pop(context.Background())
	m.say("pop %d", n)
	it := m.pick(m.queue, func(it *keysItem) bool { return it.claim == nil && it.n == n })
	if err != nil || it == nil {
		m.fatal("pop returns %d, %v", n, err)
	}
	m.out(it, false)
}

func (m *keysModel) purge(q *coord.Queue[int]) {
	m.say("purge")
	want := 0
	for _, it := range m.queue {
		if it.claim == nil {
			m.out(it, true)
			want++
		}
	}
	if n, err := q.Purge(context.Background()); n != want || err != nil {
		m.fatal("Purge returns %d, %v, want %d", n, err, want)
	}
}

func (m *keysModel) remove(q *coord.Queue[int]) {
	all := maps.Clone(m.queue)
	maps.Copy(all, m.dead)
	it := m.pick(all, anyItem)
	if it == nil {
		return
	}
	m.say("remove %d", it.n)
	err := q.Remove(context.Background(), it.id)
	switch {
	case it.claim != nil:
		if !errors.Is(err, coord.ErrLocked) {
			m.fatal("Remove of a claimed item returns %v", err)
		}
	case err != nil:
		m.fatal("%v", err)
	case m.dead[it.id] != nil:
		delete(m.dead, it.id)
	default:
		m.out(it, true)
	}
}

// redrive puts back all dead letters, or one.
func (m *keysModel) redrive(q *coord.Queue[int]) {
	var ids []string
	if it := m.pick(m.dead, anyItem); it != nil && m.r.IntN(2) == 0 {
		ids = []string{it.id}
	}
	m.say("redrive %d", len(ids))
	want, stay := 0, false
	for _, d := range letters(m.t, &q.Consumer) {
		it := m.dead[d.ID]
		switch {
		case it == nil:
			m.fatal("%+v is a dead letter", d)
		case len(ids) > 0 && d.ID != ids[0]:
		case it.key != "" && m.user(it.key) != "":
			stay = true
		default:
			delete(m.dead, it.id)
			m.came(it)
			want++
		}
	}
	n, err := q.Redrive(context.Background(), ids...)
	if n != want || stay != errors.Is(err, coord.ErrExists) || !stay && err != nil {
		m.fatal("Redrive moves %d, %v, want %d, and some stay: %t", n, err, want, stay)
	}
}

// readHolder reads the node of a key.
func (m *keysModel) readHolder(key string) (layout.KeyHolder, bool) {
	k := layout.ItemKey{Hash: layout.HashKey(key)}
	h := k.In("/q/keys") + "/" + k.HolderName()
	if !slices.Contains(m.w.keyNodes(), h) {
		return layout.KeyHolder{}, false
	}
	data, _ := m.w.nodeData(h)
	return layout.ParseKeyHolder([]byte(data))
}

// outsider deletes a node of a key.
func (m *keysModel) outsider() {
	var paths []string
	for _, path := range m.w.keyNodes() {
		name := path[strings.LastIndex(path, "/")+1:]
		if id, _, ok := layout.ParseTag(name); ok {
			if m.queue[id] == nil {
				m.fatal("%s is left", path)
			}
			paths = append(paths, path)
			continue
		}
		for _, h := range m.holder {
			if !h.queued && strings.HasSuffix(name, h.id) { // u
				paths = append(paths, path)
			}
		}
	}
	if len(paths) == 0 {
		return
	}
	path := paths[m.r.IntN(len(paths))]
	m.say("an outsider deletes %s", path)
	ops := []backend.Op{backend.Delete(m.w.Path(path), backend.AnyVersion)}
	name := path[strings.LastIndex(path, "/")+1:]
	if id, _, ok := layout.ParseTag(name); ok {
		it := m.queue[id]
		h := m.holder[it.key]
		if h.queued = false; h.until.IsZero() {
			delete(m.holder, it.key)
			m.stale[it.key] = true
		}
		it.untagged = it.claim != nil
		it.key, it.until = "", time.Time{}
	} else if _, k, _ := layout.ParseUntil(name); m.r.IntN(2) == 0 { // with h
		ops = append(ops, backend.Delete(m.w.Path(k.In("/q/keys")+"/"+k.HolderName()), backend.AnyVersion))
		maps.DeleteFunc(m.holder, func(key string, _ *keysHolder) bool { return layout.HashKey(key) == k.Hash })
	}
	m.w.outsider(ops...)
	time.Sleep(2 * time.Second) // until no client remembers an older list
}

// setClock sets the clock of the service. The clients learn that, since their contact breaks.
func (m *keysModel) setClock() {
	for key, h := range m.holder {
		if _, there := m.readHolder(key); !there && m.user(key) == "" && !h.queued {
			delete(m.holder, key) // it was collected: the key stays free when the clock is set back
		}
	}
	m.ahead = time.Duration(m.r.IntN(8)-4) * 30 * time.Minute
	m.say("the clock of the service is %v ahead", m.ahead)
	m.w.setClock(m.ahead)
	for i := range m.q {
		m.w.Link(fmt.Sprint("client", i)).Partition()
		m.w.Link(fmt.Sprint("client", i)).Heal()
	}
	time.Sleep(time.Second)
}

// inDoubt reports whether the time of a key is about to pass.
func (m *keysModel) inDoubt() bool {
	for _, it := range m.dead {
		if d := it.until.Sub(m.now()).Abs(); d < time.Minute {
			return true
		}
	}
	for _, h := range m.holder {
		if d := h.until.Sub(m.now()).Abs(); d < time.Minute {
			return true
		}
	}
	return false
}

// play makes random steps.
func (m *keysModel) play(steps int) {
	for m.step = range steps {
		who := m.r.IntN(2)
		q := m.q[who]
		if m.r.IntN(3) == 0 {
			lost := m.r.IntN(2)
			m.faults[who][lost].Arm(1+m.r.IntN(2), func(c backendtest.Call) bool { return c.Op == "commit" }, coordtest.Lose)
			m.say("a request or reply of client %d will be lost", who)
		}
		switch m.r.IntN(17) {
		default:
			m.put(q)
		case 0, 1, 2:
			m.take(q)
		case 3, 4, 5:
			m.end()
		case 6:
			m.follow(who)
		case 7:
			m.pop(q)
		case 8:
			m.redrive(q)
		case 9:
			m.remove(q)
		case 10:
			if m.r.IntN(3) == 0 {
				m.purge(q)
			}
		case 11:
			d := time.Duration(1+m.r.IntN(80)) * time.Minute
			m.say("%v pass", d)
			time.Sleep(d)
		case 12:
			m.setClock()
		case 13:
			m.outsider()
		}
		for m.inDoubt() {
			time.Sleep(time.Minute)
		}
		m.w.Settle()
		m.check()
	}
	m.finish()
}

// check compares the nodes of keys with the model.
func (m *keysModel) check() {
	m.t.Helper()
	tags, want := make(map[string]bool), make(map[string]bool)
	hashes := make(map[string]bool)
	for _, path := range m.w.keyNodes() {
		name := path[strings.LastIndex(path, "/")+1:]
		if id, _, ok := layout.ParseTag(name); ok {
			tags[id] = true
		} else if hash, ok := strings.CutPrefix(name, layout.HolderPrefix); ok {
			hashes[hash] = true
		}
	}
	for id, it := range m.queue {
		if it.key != "" {
			want[id] = true
		}
	}
	if !maps.Equal(tags, want) {
		m.fatal("the items %v have keys, want %v", tags, want)
	}
	for key := range m.stale {
		delete(hashes, layout.HashKey(key))
	}
	for key, h := range m.holder {
		hash := layout.HashKey(key)
		switch user := m.user(key); {
		case user != "" && !hashes[hash]:
			m.fatal("%s has no node, want that of %q", key, user)
		case user != "" && h.queued:
			if got, ok := m.readHolder(key); !ok || got.ID != user {
				m.fatal("%s has the item %+v, want %q", key, got, user)
			}
		}
		delete(hashes, hash)
	}
	if len(hashes) > 0 {
		m.fatal("nodes of free keys are left: %v", hashes)
	}
}

// finish takes what is left: each item comes once, and then each key is free when its time has passed.
func (m *keysModel) finish() {
	for it := m.pick(m.queue, isClaimed); it != nil; it = m.pick(m.queue, isClaimed) {
		m.out(it, false)
		mustAck(m.t, it.claim)
		it.claim = nil
	}
	for len(m.queue) > 0 {
		m.take(m.q[0])
		it := m.pick(m.queue, isClaimed)
		m.out(it, false)
		mustAck(m.t, it.claim)
	}
	m.take(m.q[1]) // nothing
	time.Sleep(24 * time.Hour)
	for _, key := range m.keys {
		m.step++
		mustPutOnce(m.t, m.q[1], key, m.step)
	}
}
