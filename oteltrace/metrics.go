package oteltrace

import (
	"context"
	"time"

	coordtrace "github.com/go-coord/coord/trace"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	keyRecipe      = attribute.Key("coord.recipe")
	keyPath        = attribute.Key("coord.path")
	keyOp          = attribute.Key("coord.op")
	keyNode        = attribute.Key("coord.node")
	keyAhead       = attribute.Key("coord.ahead")
	keyToken       = attribute.Key("coord.token")
	keyWeight      = attribute.Key("coord.weight")
	keyItem        = attribute.Key("coord.item")
	keyAttempt     = attribute.Key("coord.attempt")
	keyOutcome     = attribute.Key("coord.outcome")
	keyReason      = attribute.Key("coord.reason")
	keyBy          = attribute.Key("coord.by")
	keyForce       = attribute.Key("coord.force")
	keyRedelivered = attribute.Key("coord.redelivered")
	keyAgain       = attribute.Key("coord.again")
	keyYes         = attribute.Key("coord.yes")
	keyCommit      = attribute.Key("coord.commit")
	keyRole        = attribute.Key("coord.role")
	keyApplied     = attribute.Key("coord.applied")
	keyPhase       = attribute.Key("coord.phase")
)

type metrics struct {
	waited  metric.Float64Histogram
	held    metric.Float64Histogram
	synced  metric.Float64Histogram
	doubted metric.Float64Histogram
	late    metric.Float64Histogram
	ran     metric.Float64Histogram
	success metric.Int64Gauge

	holds, waiters, clients metric.Int64UpDownCounter
	assigned, owned, moving metric.Int64UpDownCounter // shards
	undone, failing         metric.Int64UpDownCounter // decided transactions

	losses, requeues, revocations, rounds, members metric.Int64Counter
	moves                                          metric.Int64Counter
	puts, claims, settled                          metric.Int64Counter
	runs, missed                                   metric.Int64Counter
	votes, decisions, inDoubt                      metric.Int64Counter
	uncertain, sessions, dropped                   metric.Int64Counter
}

// buckets are for durations from one request to a day's work.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86400}

func newMetrics(m metric.Meter) *metrics {
	// The names are constant and valid, so an error is the provider's problem.
	duration := func(name, what string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what),
			metric.WithExplicitBucketBoundaries(buckets...))
		if err != nil {
			otel.Handle(err)
		}
		return h
	}
	counter := func(name, unit, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		if err != nil {
			otel.Handle(err)
		}
		return c
	}
	present := func(name, unit, what string) metric.Int64UpDownCounter {
		c, err := m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		if err != nil {
			otel.Handle(err)
		}
		return c
	}
	success, err := m.Int64Gauge("coord.schedule.success", metric.WithUnit("s"), metric.WithDescription("When a run of this process was done last, in seconds since 1970."))
	if err != nil {
		otel.Handle(err)
	}
	return &metrics{
		success:     success,
		late:        duration("coord.schedule.late", "From the planned time to the call of the function."),
		ran:         duration("coord.schedule.duration", "Runs of schedules."),
		runs:        counter("coord.schedule.runs", "{run}", "Runs of schedules that have ended."),
		missed:      counter("coord.schedule.missed", "{run}", "Planned times that were left out."),
		waited:      duration("coord.wait.duration", "From the call to the grant, or the end of the wait."),
		held:        duration("coord.hold.duration", "From the grant to the release or the loss."),
		synced:      duration("coord.cache.sync.duration", "The time to read a cache's tree."),
		doubted:     duration("coord.twophase.doubt.duration", "From a site's vote to the decision."),
		holds:       present("coord.holds", "{hold}", "Holds of this process."),
		waiters:     present("coord.waiters", "{call}", "Calls of this process that wait."),
		clients:     present("coord.sessions", "{client}", "Clients of this process, by the phase of their session."),
		assigned:    present("coord.shards.assigned", "{shard}", "Shards that members of this process ought to own."),
		owned:       present("coord.shards.owned", "{shard}", "Shards that members of this process own."),
		moving:      present("coord.shards.moving", "{shard}", "Owned shards that their members were asked to give up."),
		undone:      present("coord.twophase.undone", "{transaction}", "Decided transactions that sites of this process have not carried out."),
		failing:     present("coord.twophase.failing", "{transaction}", "Of these, those whose Commit or Abort has failed."),
		losses:      counter("coord.losses", "{hold}", "Holds that ended early."),
		requeues:    counter("coord.requeues", "{place}", "Places in the queue that were lost."),
		revocations: counter("coord.revocations", "{request}", "Requests to release a lock."),
		rounds:      counter("coord.rounds", "{round}", "Rounds of double barriers that were opened."),
		members:     counter("coord.group.changes", "{change}", "Own members that joined or left."),
		moves:       counter("coord.shards.moves", "{shard}", "Shards assigned to own members, or to others instead."),
		puts:        counter("coord.queue.puts", "{item}", "Items that were put."),
		claims:      counter("coord.queue.claims", "{item}", "Items that were taken."),
		settled:     counter("coord.queue.settled", "{item}", "Items whose claim has ended."),
		votes:       counter("coord.twophase.votes", "{vote}", "Votes of sites."),
		decisions:   counter("coord.twophase.decisions", "{decision}", "Decisions that were learned."),
		inDoubt:     counter("coord.twophase.in_doubt", "{transaction}", "Transactions whose decision was destroyed."),
		uncertain:   counter("coord.uncertain", "{request}", "Requests whose reply was lost."),
		sessions:    counter("coord.session.changes", "{change}", "Changes of the session's phase."),
		dropped:     counter("coord.dropped", "{event}", "Events that were dropped because tracing is too slow."),
	}
}

// count records an event in metrics.
func (a *adapter) count(ctx context.Context, e coordtrace.Event) {
	m := a.metrics
	at := e.About()
	with := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(more,
			keyRecipe.String(at.Recipe), keyPath.String(a.path(at.Path)))...))
	}
	switch e := e.(type) {
	case coordtrace.WaitBegan:
		a.waiting.add(ctx, m.waiters, e.ID, with(keyOp.String(e.Op)))
	case coordtrace.WaitEnded:
		m.waited.Record(ctx, e.Waited.Seconds(), with(keyOp.String(e.Op), keyOutcome.String(ended(e.Err))))
		a.waiting.remove(ctx, m.waiters, e.ID)
	case coordtrace.HoldGranted:
		m.waited.Record(ctx, e.Waited.Seconds(), with(keyOp.String(e.Op), keyOutcome.String("granted")))
		a.waiting.remove(ctx, m.waiters, e.ID)
		a.holding.add(ctx, m.holds, e.ID, with())
	case coordtrace.HoldReleased:
		m.held.Record(ctx, e.Held.Seconds(), with(keyOutcome.String("released")))
		a.holding.remove(ctx, m.holds, e.ID)
	case coordtrace.HoldLost:
		m.held.Record(ctx, e.Held.Seconds(), with(keyOutcome.String("lost")))
		m.losses.Add(ctx, 1, with(keyReason.String(string(e.Reason))))
		a.holding.remove(ctx, m.holds, e.ID)
	case coordtrace.WaiterRequeued:
		m.requeues.Add(ctx, 1, with())
	case coordtrace.RevocationSent:
		outcome := "sent"
		if e.Forced {
			outcome = "forced"
		}
		m.revocations.Add(ctx, 1, with(keyOutcome.String(outcome)))
	case coordtrace.RevocationRead:
		m.revocations.Add(ctx, 1, with(keyOutcome.String("read")))
	case coordtrace.RoundOpened:
		m.rounds.Add(ctx, 1, with())
	case coordtrace.ItemsPut:
		m.puts.Add(ctx, int64(len(e.Items)), with())
	case coordtrace.ItemClaimed:
		m.claims.Add(ctx, 1, with(keyRedelivered.Bool(e.Attempt > 1)))
		a.holding.add(ctx, m.holds, e.ID, with())
	case coordtrace.ItemSettled:
		outcome := keyOutcome.String(e.Outcome.String())
		m.settled.Add(ctx, 1, with(outcome))
		if e.ID == 0 {
			return // it was not claimed
		}
		m.held.Record(ctx, e.Held.Seconds(), with(outcome))
		a.holding.remove(ctx, m.holds, e.ID)
		if e.Outcome == coordtrace.ItemLost {
			m.losses.Add(ctx, 1, with(keyReason.String(string(e.Reason))))
		}
	case coordtrace.RunBegan:
		if !e.Asked && e.Attempt == 1 {
			m.late.Record(ctx, e.Late.Seconds(), with())
			m.missed.Add(ctx, int64(e.Missed), with())
		}
		a.holding.add(ctx, m.holds, e.ID, with())
	case coordtrace.RunEnded:
		outcome := keyOutcome.String(string(e.Outcome))
		m.runs.Add(ctx, 1, with(outcome))
		if e.ID == 0 {
			return // the run of another process
		}
		m.ran.Record(ctx, e.Took.Seconds(), with(outcome))
		a.holding.remove(ctx, m.holds, e.ID)
		switch e.Outcome {
		case coordtrace.RunDone:
			m.success.Record(ctx, time.Now().Unix(), with())
		case coordtrace.RunLost:
			m.losses.Add(ctx, 1, with(keyReason.String(string(e.Reason))))
		}
	case coordtrace.MemberJoined:
		outcome := "joined"
		if e.Again {
			outcome = "rejoined"
		}
		m.members.Add(ctx, 1, with(keyOutcome.String(outcome)))
	case coordtrace.MemberLeft:
		outcome := "left"
		if e.Rejoins {
			outcome = "lost"
		} else if e.Err != nil {
			outcome = "ended"
		}
		m.members.Add(ctx, 1, with(keyOutcome.String(outcome)))
	case coordtrace.ShardsAssigned:
		m.moves.Add(ctx, int64(e.Gained), with(keyOutcome.String("gained")))
		m.moves.Add(ctx, int64(e.Lost), with(keyOutcome.String("lost")))
	case coordtrace.ShardsOwned:
		a.shards.changed(ctx, m, e, with())
	case coordtrace.CacheSynced:
		m.synced.Record(ctx, e.Took.Seconds(), with(keyAgain.Bool(e.Again)))
	case coordtrace.ProposalVoted:
		m.votes.Add(ctx, 1, with(keyYes.Bool(e.Yes)))
	case coordtrace.ProposalDecided:
		role := "proposer"
		if e.Op == "recover" {
			role = "recovery"
		} else if e.Site != "" {
			role = "site"
			m.doubted.Record(ctx, e.InDoubt.Seconds(), with())
		}
		m.decisions.Add(ctx, 1, with(keyCommit.Bool(e.Commit), keyRole.String(role)))
	case coordtrace.DecisionsUndone:
		a.undone.changed(ctx, m, e, with())
	case coordtrace.ProposalInDoubt:
		m.inDoubt.Add(ctx, 1, with())
	case coordtrace.OutcomeResolved:
		m.uncertain.Add(ctx, 1, metric.WithAttributes(keyApplied.Bool(e.Applied)))
	case coordtrace.StateChanged:
		m.sessions.Add(ctx, 1, metric.WithAttributes(keyPhase.String(e.Phase)))
		a.sessions.changed(ctx, m.clients, e)
	case coordtrace.EventsDropped:
		m.dropped.Add(ctx, int64(e.Events))
		// The events that end them may be missing.
		a.waiting.removeAll(ctx, m.waiters)
		a.holding.removeAll(ctx, m.holds)
	}
}
