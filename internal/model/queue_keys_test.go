//go:build !race

package model

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// The keys of items: puts with one key, the ends of their items, a Redrive, a collector, and an outsider. The rules are K1 to K7, D1, D2
// and T4 of internal/queue/rules.go. The nodes are the item, k beside it, h that names the item and its bucket, and u of an item with a time.
//
// 1. The commit of a put creates the item, k, h and, with a time, u. It is refused if h exists (K1).
//
// 2. An Ack deletes the item and k, and h if the item has no time. The other ends, and an Ack of an item without a time, also delete h
// and u, at any version. A node that is gone is left out, and without k also h and u, and the key in
// the r of a dead letter (K2, K3).
//
// 3. A Redrive is a put of the same item, from the r of the dead letter (D2). If another item has the key, it moves nothing.
//
// 4. A put that is refused calls Sync, and reads h, then k and u of the item that h names, then h again. If k exists, the key is in
// use. If h has changed, it begins again. Otherwise the key is free once its time has passed. The next commit sets h, at the version
// that was read, and deletes u if that was there (K4).
//
// 5. The collector lists u. If its time has passed, it reads as in rule 4, without a Sync. Then it deletes u, and h at the version that
// was read, if h names the same item, has not changed, and k is gone. If h is gone, it deletes u if h is absent then (K6).
// If h names another item, whose k is there, it deletes u if that k is there then: so h does not name the first item.
//
// 6. An end by an earlier version leaves k, h and u behind. A consumer that has listed k without its item deletes k, and h if there is no
// time (K7).
//
// 7. A commit whose reply is lost is resolved: it is applied exactly once.
//
// A Redrive puts its item into the same bucket or another one, and h that is created anew has version 0 again. Clients die at any step, and
// time passes at any step. The server of a put may be behind until its Sync. All later reads of a client may count as made at the
// time of the state that they show. The outsider deletes one node: k, u or h. Without h it is promised only that the key does not stay in use.
// A claim and its list are one step. Transactions and queues with MaxLen (K5) are left out.

const (
	keyItems  = 4 // the first actors are the puts: the number of an item is that of its put
	keyActors = 6
	keyPlaces = 2 // buckets
)

// keyRole is what an actor does.
type keyRole uint8

const (
	keyNone    keyRole = iota
	keyPut             // puts an item
	keyPutFor          // puts an item with a time
	keyTake            // takes items, and acknowledges or buries each
	keyElder           // the same, of an earlier version
	keyRedrive         // moves dead letters back
	keyRemove          // removes items
	keyCollect         // collects keys
	keySweep           // removes litter
)

func (r keyRole) String() string {
	return [...]string{"nobody", "put", "put with a time", "consumer", "earlier version", "redrive", "remove", "collector", "sweep"}[r]
}

// keyAt is what an actor is about to do.
type keyAt uint8

const (
	keyIdle keyAt = iota
	keyCommits
	keySyncs
	keyReadsH
	keyReadsK
	keyReadsU
	keyReadsHAgain
	keyJudges // the time
	keyLost   // the reply: reads the outcome
	keyEnded
)

// keyWhere is where an item is.
type keyWhere uint8

const (
	keyNowhere keyWhere = iota
	keyQueued
	keyDead
	keyGone
)

type keyItem struct {
	at      keyWhere
	place   uint8
	until   uint8 // 0: no time
	claimed bool
	moves   uint8 // by Redrives
	letter  bool  // r has the key
	keyed   bool  // the item was put with the key, and has it unless a client breaks rule 3
	acked   bool  // acknowledged with a time, which the key keeps
}

// keyHolder is the node h.
type keyHolder struct {
	there                bool
	item, place, version uint8
}

// keyTree are the nodes of the key.
type keyTree struct {
	h keyHolder
	k uint8 // of each item and bucket
	u uint8 // of each item
}

type keyActor struct {
	at      keyAt
	item    uint8
	place   uint8
	moves   uint8
	began   uint8   // puts: the items that were in the queue, or had the key, since the call began
	behind  bool    // the server shows view
	view    keyTree // of the server that is behind
	h       keyHolder
	changed bool // h, since it was read
	u       bool // u of the item that h names was there
	stale   bool // h is replaced
	tagged  bool // k is there
	timed   bool // u is there
	bury    bool
	tag     bool // a list has shown k, or r has the key
	withK   bool // the commit of an end deletes k, h, u
	withH   bool
	withU   bool
	applied bool // with keyLost
}

type keyState struct {
	keyTree
	items  [keyItems]keyItem
	actors [keyActors]keyActor
	clock  uint8
	ends   uint8 // of clients
	lost   uint8 // replies
	rounds uint8 // of the collector
	out    bool  // the outsider has deleted a node
	outH   bool  // h
	fault  keyFault
}

// keyFault is what a step has violated.
type keyFault uint8

const (
	keySound keyFault = iota
	keyTwice
	keyEarly
	keyForeign
	keyOwn
	keyAgain
	keyLiving
)

var keyErrors = [...]error{
	keyTwice:   errors.New("two items with one key are in the queue"),
	keyEarly:   errors.New("a key is given again before its time"),
	keyForeign: errors.New("a put names an item that has not had the key during the call"),
	keyOwn:     errors.New("a put that was applied finds the key in use by its own item"),
	keyAgain:   errors.New("a put is applied twice"),
	keyLiving:  errors.New("the h of an item in the queue is collected"),
}

var (
	errKeyLeft  = errors.New("a node of the key is without those that it goes with")
	errKeyInUse = errors.New("the key stays in use for ever")
)

// keyRules are the rules left out, by their numbers.
type keyRules struct {
	leavesH     bool // 2: without k, the commit still deletes h
	keepsKey    bool // 2: without k, r still has the key
	overwrites  bool // 3: a Redrive does not look at h
	noSync      bool // 4: no Sync before the reads
	noK         bool // 4: k is not read
	noSecond    bool // 4: h is not read again
	noU         bool // 4: the commit does not depend on u
	needsU      bool // 4: the commit deletes u whether it was there or not
	holds       bool // 4: h alone keeps the key in use
	noTime      bool // 4: the time is not judged
	livingToo   bool // 5: the collector does not look at k
	collectOnce bool // 5: the collector does not read h again
	notAbsent   bool // 5: u without h is deleted whether h is absent or not
	others      bool // 5: u is deleted if h has named another item
	onlyK       bool // 6: h stays when litter is removed
	assumes     bool // 7: a commit without a reply counts as not applied
}

type keyModel struct {
	roles  []keyRole
	clock  uint8 // how often time passes
	moves  uint8 // Redrives of each item
	ends   uint8 // clients that die
	lost   uint8 // lost replies
	rounds uint8 // of the collector
	lag    bool  // servers are behind
	out    string
	rules  keyRules
	deep   bool // errKeyLeft does not count
}

type keyStep struct {
	who  string
	what string
	free bool
}

func (a keyStep) String() string { return a.who + " " + a.what }

func (m *keyModel) explore(t *testing.T) Result[keyStep] {
	t.Helper()
	var start keyState
	for c := range keyActors {
		if c >= len(m.roles) {
			start.actors[c].at = keyEnded
		}
	}
	var roles []string
	for _, r := range m.roles {
		roles = append(roles, r.String())
	}
	name := fmt.Sprintf("of keys, %s; time passes %d times, %d moves, %d dead clients, %d lost replies, outsider %q", strings.Join(roles, ", "), m.clock, m.moves, m.ends, m.lost, m.out)
	return exploreAll(t, name, Model[keyState, keyStep]{Start: start, Next: m.next, Free: func(a keyStep) bool { return a.free }})
}

func TestKeysKeepTheirPromises(t *testing.T) {
	t.Parallel()
	const p, f, take, redrive, collect = keyPut, keyPutFor, keyTake, keyRedrive, keyCollect
	models := []keyModel{
		{roles: []keyRole{p, f, take}, clock: 2, lag: true, lost: 1, ends: 1},
		{roles: []keyRole{f, p, take, redrive, collect}, clock: 2, moves: 1, rounds: 2},
		{roles: []keyRole{f, f, take, redrive, collect}, clock: 2, moves: 1, rounds: 1},
		{roles: []keyRole{f, p, take, redrive, collect}, clock: 1, moves: 1, rounds: 1, out: "k"},
		{roles: []keyRole{f, p, take, redrive, collect}, clock: 1, moves: 1, rounds: 1, out: "u"},
		{roles: []keyRole{f, p, take, redrive, collect}, clock: 1, moves: 1, rounds: 1, out: "h"},
		{roles: []keyRole{f, p, take, redrive, keyRemove}, clock: 1, moves: 1},
		{roles: []keyRole{f, p, p, take, collect}, clock: 1, rounds: 1},
		{roles: []keyRole{f, p, p, take}, clock: 1, out: "k"},
		{roles: []keyRole{f, p, p, take}, clock: 1, out: "u"},
		{roles: []keyRole{f, p, keyElder, keySweep, redrive}, clock: 1, moves: 1},
		{roles: []keyRole{f, p, keyElder, take, keySweep, redrive}, clock: 1, moves: 1},
	}
	if long() {
		models = append(models, []keyModel{
			{roles: []keyRole{f, p, take, redrive, collect}, clock: 2, moves: 2, rounds: 2, lag: true, lost: 1, ends: 1},
			{roles: []keyRole{f, f, take, redrive, collect}, clock: 2, moves: 2, rounds: 2, out: "ku"},
			{roles: []keyRole{f, p, p, take, redrive, collect}, clock: 1, moves: 1, rounds: 1},
			{roles: []keyRole{p, p, p, take, redrive}, moves: 2},
			{roles: []keyRole{f, p, p, p, take}, clock: 1},
			{roles: []keyRole{f, p, take, keyRemove, redrive, collect}, clock: 1, moves: 2, rounds: 2},
			{roles: []keyRole{f, p, p, keyElder, keySweep, redrive}, clock: 1, moves: 1},
		}...)
	}
	for _, m := range models {
		mustHold(t, m.explore(t))
	}
}

func TestKeysNeedTheirRules(t *testing.T) {
	t.Parallel()
	plain := []keyRole{keyPut, keyPut, keyTake}
	timed := []keyRole{keyPutFor, keyPut, keyTake}
	redrive := []keyRole{keyPut, keyPut, keyTake, keyRedrive}
	collect := []keyRole{keyPutFor, keyPut, keyTake, keyRedrive, keyCollect}
	for name, test := range map[string]struct {
		model keyModel
		want  error
	}{
		"2: without k, an end still deletes h":       {keyModel{roles: []keyRole{keyPut, keyPut, keyPut, keyTake}, out: "k", rules: keyRules{leavesH: true}}, keyErrors[keyTwice]},
		"2: without k, the dead letter has the key":  {keyModel{roles: collect, clock: 1, moves: 1, rounds: 1, out: "k", rules: keyRules{keepsKey: true}}, keyErrors[keyTwice]},
		"3: a Redrive does not look at h":            {keyModel{roles: redrive, moves: 1, deep: true, rules: keyRules{overwrites: true}}, keyErrors[keyTwice]},
		"4: no Sync before the reads":                {keyModel{roles: append(plain[:2:2], keyPut, keyTake), lag: true, rules: keyRules{noSync: true}}, keyErrors[keyForeign]},
		"4: k is not read":                           {keyModel{roles: plain, rules: keyRules{noK: true}}, keyErrors[keyTwice]},
		"4: h is not read again":                     {keyModel{roles: redrive, moves: 1, deep: true, rules: keyRules{noSecond: true}}, keyErrors[keyTwice]},
		"4: h is not read again, with a time":        {keyModel{roles: append(timed[:3:3], keyRedrive), clock: 1, moves: 1, deep: true, rules: keyRules{noSecond: true}}, keyErrors[keyTwice]},
		"4: the commit does not depend on u":         {keyModel{roles: []keyRole{keyPutFor, keyPut, keyPut, keyPut, keyTake}, clock: 1, deep: true, rules: keyRules{noU: true}}, keyErrors[keyTwice]},
		"4: the commit deletes u that was not there": {keyModel{roles: timed, clock: 1, out: "u", rules: keyRules{needsU: true}}, ErrEndless},
		"4: h without k keeps the key in use":        {keyModel{roles: plain, out: "k", rules: keyRules{holds: true}}, errKeyInUse},
		"4: the time is not judged":                  {keyModel{roles: timed, rules: keyRules{noTime: true}}, keyErrors[keyEarly]},
		"5: the collector does not look at k":        {keyModel{roles: collect, clock: 1, rounds: 1, rules: keyRules{livingToo: true}}, keyErrors[keyLiving]},
		"5: the collector does not read h again":     {keyModel{roles: collect, clock: 1, moves: 1, rounds: 1, rules: keyRules{collectOnce: true}}, keyErrors[keyLiving]},
		"5: u is deleted although h is there again":  {keyModel{roles: collect, clock: 1, moves: 1, rounds: 1, rules: keyRules{notAbsent: true}}, errKeyLeft},
		"5: u is deleted if h named another item":    {keyModel{roles: collect, clock: 1, moves: 1, rounds: 1, rules: keyRules{others: true}}, errKeyLeft},
		"6: litter is removed without its h":         {keyModel{roles: []keyRole{keyPut, keyElder, keySweep}, rules: keyRules{onlyK: true}}, errKeyLeft},
		"7: a commit without a reply is repeated":    {keyModel{roles: plain[:1], lost: 1, rules: keyRules{assumes: true}}, keyErrors[keyOwn]},
		"7: a commit is repeated after an Ack":       {keyModel{roles: plain[1:], lost: 1, deep: true, rules: keyRules{assumes: true}}, keyErrors[keyAgain]},
	} {
		t.Run(name, func(t *testing.T) { mustViolate(t, test.model.explore(t), test.want, 0) })
	}
}
