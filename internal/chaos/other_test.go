//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
)

// The faults of servers that are not ZooKeeper's. Those of clients and their networks are the
// same, except that of connections, since other servers limit none.
var otherServerFaults = []fault{
	{"leader killed", true, (*nemesis).killLeader},
	{"leader stopped", true, (*nemesis).stopLeader},
	{"rolling restart", true, (*nemesis).rollingRestart},
	{"server killed", false, (*nemesis).killOther},
	{"server stopped", false, (*nemesis).stopOther},
	{"leader cut off", true, (*nemesis).cutOffOtherLeader},
	{"server cut off", false, (*nemesis).cutOffOther},
	{"full disk", false, (*nemesis).fullOtherDisk},
	{"compaction", false, (*nemesis).compact},
}

// brief are the faults of the short form. Its run is a part of the tests of another module.
var brief = []string{"leader killed", "leader stopped", "leader cut off", "full disk", "compaction", "connections cut", "network lost", "client stopped"}

func otherFaults() [2][]fault {
	all := [2][]fault{otherServerFaults, clientFaults}
	if troubles := ensemble.Elsewhere.Troubles; troubles != nil {
		all[0] = nil
		for _, t := range troubles {
			if !isBrief() || t.Brief {
				all[0] = append(all[0], fault{t.Kind, t.Alone, func(n *nemesis, r *rand.Rand, _ *event) error {
					ctx, cancel := n.ctx()
					defer cancel()
					return t.Do(ctx, n.r.other, r)
				}})
			}
		}
	}
	for i, list := range all {
		all[i] = slices.DeleteFunc(slices.Clone(list), func(f fault) bool {
			return f.kind == "connection limit" || isBrief() && !slices.Contains(brief, f.kind) && !isTrouble(f.kind)
		})
	}
	return all
}

// isTrouble reports whether a kind of fault is one of the service's own.
func isTrouble(kind string) bool {
	return ensemble.Elsewhere != nil && slices.ContainsFunc(ensemble.Elsewhere.Troubles, func(t ensemble.Trouble) bool { return t.Kind == kind })
}

func isBrief() bool {
	return ensemble.Elsewhere != nil && os.Getenv("COORD_CHAOS") == "" && os.Getenv("COORD_LONG") != "1"
}

// longestPause is longer than an election takes. It leaves the sessions the intervals between three
// renewals, one of which can be lost.
const longestPause = sessionTimeout * 5 / 8

func (n *nemesis) oneOf(r *rand.Rand) ensemble.Server {
	servers := n.r.other.Servers()
	return servers[r.IntN(len(servers))]
}

func (n *nemesis) killOther(r *rand.Rand, _ *event) error { return n.restart(n.oneOf(r)) }

func (n *nemesis) stopOther(r *rand.Rand, about *event) error {
	return n.stop(n.oneOf(r), about, longestPause-time.Duration(r.IntN(2000))*time.Millisecond) // it can be the leader
}

// cutOff cuts a server off from the others for a while. Clients still reach it.
func (n *nemesis) cutOff(s ensemble.Server, d time.Duration) error {
	n.r.other.CutOff(s, true)
	time.Sleep(d) // the length of the fault
	n.r.other.CutOff(s, false)
	ctx, cancel := n.ctx()
	defer cancel()
	return s.Await(ctx)
}

// cutOffOtherLeader cuts the leader off for so long that the others elect another one.
func (n *nemesis) cutOffOtherLeader(r *rand.Rand, _ *event) error {
	s, err := n.leader()
	if err != nil {
		return err
	}
	return n.cutOff(s, time.Duration(2500+r.IntN(2000))*time.Millisecond)
}

func (n *nemesis) cutOffOther(r *rand.Rand, _ *event) error {
	return n.cutOff(n.oneOf(r), time.Duration(500+r.IntN(3000))*time.Millisecond)
}

// fullOtherDisk fills the disk of a server, which ends for that. When there is room again it is
// started.
func (n *nemesis) fullOtherDisk(r *rand.Rand, _ *event) error {
	s, err := n.r.other.Disk()
	if err != nil {
		return err
	}
	ctx, cancel := n.ctx()
	defer cancel()
	err = n.r.other.FillDisk(ctx)
	time.Sleep(time.Duration(500+r.IntN(1000)) * time.Millisecond) // the length of the fault
	return errors.Join(err, n.r.other.EmptyDisk(), n.restart(s))
}

// compact makes the servers forget their history several times, also under clients that lag
// behind.
func (n *nemesis) compact(*rand.Rand, *event) error {
	for range 10 {
		ctx, cancel := n.ctx()
		err := n.r.other.Compact(ctx)
		cancel()
		if err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond) // the clients work
	}
	return nil
}

func (n *nemesis) healOther() error {
	ctx, cancel := n.ctx()
	defer cancel()
	var errs []error
	if _, err := n.r.other.Disk(); err == nil {
		errs = append(errs, n.r.other.EmptyDisk())
	}
	for i, s := range n.r.other.Servers() {
		n.r.other.CutOff(s, false)
		if err := errors.Join(s.Launch(), s.Resume()); err != nil {
			errs = append(errs, fmt.Errorf("server %d: %w", i, err))
		}
	}
	for i, s := range n.r.other.Servers() {
		if err := s.Await(ctx); err != nil {
			errs = append(errs, fmt.Errorf("server %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
