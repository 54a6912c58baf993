package sweep

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

func election() *recipe {
	campaign := func(x *cell, p *player) (*coord.Election, *coord.Term) {
		e := coord.NewElection(p.c, "/e", &coord.ElectionOptions{ID: p.name})
		term, err := e.Campaign(x.ctx)
		if !p.ok("campaign", err) {
			return e, nil
		}
		x.resource("e", 1).enter(p, term.Hold, 1)
		return e, term
	}
	resign := func(x *cell, p *player, t *coord.Term) { x.resource("e", 1).release(p, t.Hold) }
	return &recipe{
		name: "election", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			watch, stop := context.WithCancel(x.ctx)
			seen := coord.NewElection(c.c, "/e", nil).WatchLeader(watch)
			// see waits until the observer reports such a state.
			see := func(what string, is func(coord.Leader) bool) {
				for x.going() {
					l, ok := await(x, "c sees "+what, seen)
					if !ok || l.Err != nil {
						if x.going() {
							x.violation("observe ended: %v", l.Err)
						}
						return
					}
					if is(l) {
						return
					}
				}
			}
			_, first := campaign(x, a)
			if first == nil {
				stop()
				return
			}
			told := a.ok("announce", first.Announce(x.ctx, []byte("a")), coord.ErrLost)
			if told && first.Err() == nil && !a.lost() {
				see("a ready", func(l coord.Leader) bool { return l.ID == "a" && l.Ready || a.lost() })
			}
			var second *coord.Term
			done := x.inLine(b, func() { _, second = campaign(x, b) })
			x.rest()
			resign(x, a, first)
			<-done
			if second == nil {
				stop()
				return
			}
			if !b.lost() {
				see("b", func(l coord.Leader) bool { return l.ID == "b" || b.lost() })
			}
			resign(x, b, second)
			see("no leader", coord.Leader.Vacant)
			stop()
			for range seen {
			}
		},
		fresh: func(x *cell, p *player) {
			e, term := campaign(x, p)
			if term == nil {
				return
			}
			p.ok("announce", term.Announce(x.ctx, []byte("fresh")))
			l, err := e.Leader(x.ctx)
			if p.ok("leader", err) && (l.ID != "fresh" || string(l.Announcement) != "fresh") {
				x.violation("the leader is %v", l)
			}
			resign(x, p, term)
		},
	}
}

func group(without backend.Features) *recipe {
	return &recipe{
		name: "group" + lacking(without), without: without, players: []string{"a", "b", "c"},
		play: func(x *cell) {
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			watch, stop := context.WithCancel(x.ctx)
			defer stop()
			seen := coord.NewGroup[string](b.c, "/g", nil).Watch(watch)
			there := make(map[string]int64) // by the reports of Joined and Left
			see := func(want string) {
				for x.going() {
					m, ok := await(x, "b sees "+want, seen)
					if !ok || m.Err != nil {
						if x.going() {
							x.violation("watch ended: %v", m.Err)
						}
						return
					}
					for _, l := range m.Left {
						if there[l.ID] != l.Token {
							x.violation("%s left as %d, joined as %d", l.ID, l.Token, there[l.ID])
						}
						delete(there, l.ID)
					}
					var list []string
					for _, j := range m.Joined {
						if there[j.ID] != 0 {
							x.violation("%s joined twice", j.ID)
						}
						there[j.ID] = j.Token
					}
					for _, l := range m.Members {
						list = append(list, l.ID+"="+l.Value)
						if there[l.ID] != l.Token {
							x.violation("%s is listed as %d, joined as %d", l.ID, l.Token, there[l.ID])
						}
					}
					if strings.Join(list, " ") == want {
						return
					}
				}
			}
			join := func(p *player, id, v string) *coord.Membership[string] {
				m, err := coord.NewGroup[string](p.c, "/g", nil).Join(x.ctx, id, v)
				p.ok("join", err)
				return m
			}
			see("")
			m := join(a, "x", "1")
			see("x=1")
			n := join(c, "y", "1")
			see("x=1 y=1")
			if !x.going() {
				return
			}
			a.ok("set", m.SetValue(x.ctx, "2"))
			see("x=2 y=1")
			x.rest()
			a.ok("leave", m.Leave())
			c.ok("leave", n.Leave())
			see("")
			stop()
			for range seen {
			}
		},
		fresh: func(x *cell, p *player) {
			g := coord.NewGroup[string](p.c, "/g", nil)
			for _, id := range []string{"x", "y"} {
				m, err := g.Join(x.ctx, id, "fresh")
				if !p.ok("join", err) {
					return
				}
				list, err := g.Members(x.ctx)
				if p.ok("members", err) && (len(list) != 1 || list[0].ID != id) {
					x.violation("members %v", list)
				}
				p.ok("leave", m.Leave())
			}
		},
	}
}

// lacking is the end of the name of a recipe on a service without features.
func lacking(without backend.Features) string {
	if without == 0 {
		return ""
	}
	return ", without trees and batches"
}

// cache: the copy of b follows the changes by a and c.
func cache(without backend.Features) *recipe {
	return &recipe{
		name: "cache" + lacking(without), without: without, players: []string{"a", "b", "c"},
		play: func(x *cell) {
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			put := func(p *player, path, data string) {
				for x.going() {
					_, err := coord.NewValue(p.c, path, &coord.ValueOptions[string]{Codec: coord.Text()}).Set(x.ctx, data)
					if p.ok("set "+path, err, coord.ErrUncertain) {
						return
					}
				}
			}
			// A first copy of several nodes is read by batches.
			put(a, "/data", "0")
			put(c, "/data/u", "0")
			put(c, "/data/v", "0")
			k := coord.NewCache(b.c, "/data", nil)
			ctx, stop := context.WithCancel(x.ctx)
			defer stop()
			var fold map[string]string
			done := make(chan struct{}, 2)
			go func() {
				defer func() { done <- struct{}{} }()
				if err := k.Run(ctx); x.going() && ctx.Err() == nil {
					x.violation("run ended: %v", err)
				}
			}()
			var shown = make(chan string)
			go func() {
				defer func() { done <- struct{}{} }()
				fold = make(map[string]string)
				for events, err := range k.Events(ctx) {
					if err != nil {
						if ctx.Err() == nil {
							x.violation("events ended: %v", err)
						}
						return
					}
					for _, e := range events {
						_, was := fold[e.Path]
						if was != (e.Kind != coord.NodeCreated) {
							x.violation("%v of %s, which exists: %t", e.Kind, e.Path, was)
						}
						if e.Kind == coord.NodeDeleted {
							delete(fold, e.Path)
						} else {
							fold[e.Path] = string(e.Node.Data)
						}
					}
					select {
					case shown <- text(fold):
					case <-ctx.Done():
					}
				}
			}()
			see := func(want string) {
				for x.going() {
					if got, ok := await(x, "b sees "+want, shown); !ok || got == want {
						break
					}
				}
				x.until("the copy is "+want, func() bool {
					m := make(map[string]string)
					for p, n := range k.Walk("/data") {
						m[p] = string(n.Data)
					}
					return text(m) == want
				})
			}
			await(x, "synced", k.Synced())
			see("/data=0 /data/u=0 /data/v=0")
			put(c, "/data/x", "1")
			put(a, "/data/y", "2")
			see("/data=0 /data/u=0 /data/v=0 /data/x=1 /data/y=2")
			put(c, "/data/x", "3")
			for x.going() {
				_, err := coord.NewTxn(a.c).Delete("/data/y").Commit(x.ctx)
				if a.ok("delete", err, coord.ErrUncertain, coord.ErrConflict) || x.count("/data/y") == 0 {
					break
				}
			}
			see("/data=0 /data/u=0 /data/v=0 /data/x=3")
			x.rest()
			put(c, "/data/y", "4")
			see("/data=0 /data/u=0 /data/v=0 /data/x=3 /data/y=4")
			stop()
			<-done
			<-done
		},
		fresh: func(x *cell, p *player) {
			k := coord.NewCache(p.c, "/data", nil)
			ctx, stop := context.WithCancel(x.ctx)
			done := make(chan struct{})
			go func() {
				defer close(done)
				k.Run(ctx)
			}()
			if await(x, "fresh is synced", k.Synced()); k.Len() != 5 && x.going() {
				x.violation("the fresh copy has %d nodes", k.Len())
			}
			stop()
			<-done
		},
	}
}

func text(m map[string]string) string {
	var list []string
	for _, p := range slices.Sorted(maps.Keys(m)) {
		list = append(list, fmt.Sprintf("%s=%s", p, m[p]))
	}
	return strings.Join(list, " ")
}
