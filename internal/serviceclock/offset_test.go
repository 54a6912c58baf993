package serviceclock

import (
	"math/rand/v2"
	"testing"
	"time"
)

// clocks are a service's clock and a local one that run at different speeds.
type clocks struct {
	offset int64 // service - local when the local clock shows 0
	ppm    int64 // by how much the service's clock is faster
}

// service returns what the service's clock shows.
func (c clocks) service(local int64) int64 { return local + c.offset + local/1_000_000*c.ppm }

// stamp returns the sample of a write that takes those times to the service and back.
func (c clocks) stamp(sent, there, back, zxid int64) sample {
	return sample{sent: sent, answered: sent + there + back, stamp: c.service(sent+there) / int64(time.Millisecond), zxid: zxid}
}

func checkOffset(t *testing.T, o *offset, c clocks, local int64) {
	t.Helper()
	least, most := o.service(local)
	if now := c.service(local); now < least || now > most {
		t.Fatalf("the service's clock shows %d at %d, not in [%d, %d]: %d below, %d above; %+v, %+v", now, local, least, most, least-now, now-most, o, c)
	}
}

// Whatever the offset, the drift and the times of requests are, the service's clock is in the
// interval, which is no wider than the newest request and its age allow.
func TestOffset_ContainsTheDifference(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 7))
		c := clocks{offset: int64(1e18) + r.Int64N(1e18), ppm: r.Int64N(401) - 200}
		var o offset
		now := r.Int64N(int64(time.Hour))
		wait := func(most time.Duration) int64 { return r.Int64N(int64(most)) + 1 }
		for zxid := range int64(20) {
			most := []time.Duration{50 * time.Microsecond, 5 * time.Millisecond, time.Second, time.Minute}[r.IntN(4)]
			x := c.stamp(now, wait(most), wait(most), 2*zxid+2)
			if r.IntN(3) > 0 {
				o.add(x)
			} else {
				// A second request overlaps with it, and its answer is handled first.
				y := c.stamp(now+x.answered%3, wait(most), wait(most), 2*zxid+1)
				o.add(y)
				checkOffset(t, &o, c, max(x.answered, y.answered))
				o.add(x)
				x.answered = max(x.answered, y.answered)
			}
			now = x.answered
			checkOffset(t, &o, c, now)
			now += wait([]time.Duration{time.Millisecond, time.Second, time.Hour, 240 * time.Hour}[r.IntN(4)])
			checkOffset(t, &o, c, now)
			least, span := o.service(now)
			if widest := int64(time.Millisecond) + x.answered - x.sent + 2*drifted(now-x.sent) + 4; span-least > widest {
				t.Fatalf("seed %d: an interval of %d after a request of %d, %d ago", seed, span-least, x.answered-x.sent, now-x.answered)
			}
			// A wait for a time ends when the service's clock shows it, or when it may.
			due := (c.service(now) + wait(48*time.Hour)) / int64(time.Millisecond)
			at := o.until(nanoseconds(due))
			least, span = o.service(at)
			switch {
			case o.stale(at) && at > now+1 && span < nanoseconds(due) && at > o.at+freshFor+1:
				t.Fatalf("seed %d: woken at %d, when the service's clock shows %d at the most, before %d", seed, at, span, nanoseconds(due))
			case !o.stale(at) && least < nanoseconds(due):
				t.Fatalf("seed %d: woken when the service's clock shows %d at the least, before %d", seed, least, nanoseconds(due))
			case !o.stale(at) && at > now && least > nanoseconds(due)+10:
				t.Fatalf("seed %d: woken when the service's clock shows %d at the least, long after %d", seed, least, nanoseconds(due))
			case o.stale(at) && at > now && at > o.at+freshFor+1 && span > nanoseconds(due)+10:
				t.Fatalf("seed %d: woken when the service's clock shows %d at the most, long after %d", seed, span, nanoseconds(due))
			}
		}
	}
}

// After a jump of the service's clock by more than a request takes, the next sample tells the
// truth again. A sample of before the jump that comes late changes nothing.
func TestOffset_IsDroppedAfterAJump(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 8))
		c := clocks{offset: int64(1e18) + r.Int64N(1e18), ppm: r.Int64N(401) - 200}
		var o offset
		now := int64(0)
		trip := func() int64 { return r.Int64N(int64(5*time.Millisecond)) + 1 }
		for zxid := range int64(5) {
			x := c.stamp(now, trip(), trip(), zxid+1)
			o.add(x)
			now = x.answered + r.Int64N(int64(time.Second))
		}
		late := c.stamp(now, trip(), trip(), 6)
		jump := int64(20*time.Millisecond) + r.Int64N(int64(time.Hour))
		if r.IntN(2) == 0 {
			jump = -jump
		}
		c.offset += jump
		now = late.answered
		x := c.stamp(now, trip(), trip(), 7)
		o.add(x)
		checkOffset(t, &o, c, x.answered)
		o.add(late)
		checkOffset(t, &o, c, x.answered)
		now = x.answered + r.Int64N(int64(time.Second))
		checkOffset(t, &o, c, now)
		y := c.stamp(now, trip(), trip(), 8)
		o.add(y)
		checkOffset(t, &o, c, y.answered)
	}
}

// A write that is sent when the offset says that a time has come, and is stamped before that time, corrects
// the offset: after a step of the service's clock, also one that later samples do not show, at most two
// such writes are early.
func TestOffset_IsCorrectedByAWriteThatWasEarly(t *testing.T) {
	most := 0
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 9))
		c := clocks{offset: int64(1e18) + r.Int64N(1e18), ppm: r.Int64N(401) - 200}
		var o offset
		now, zxid := int64(0), int64(0)
		write := func(longest time.Duration) (x sample) {
			zxid++
			x = c.stamp(now, r.Int64N(int64(longest))+1, r.Int64N(int64(longest))+1, zxid)
			now = x.answered
			o.add(x)
			return x
		}
		slow := []time.Duration{time.Millisecond, 100 * time.Millisecond, 10 * time.Second}
		for range 3 {
			write(slow[r.IntN(3)])
		}
		due := (c.service(now) + r.Int64N(int64(time.Minute))) / int64(time.Millisecond)
		c.offset -= r.Int64N(int64(slow[r.IntN(3)]))
		for range r.IntN(3) {
			write(slow[r.IntN(3)])
		}
		for early := 0; ; early++ {
			if at := o.until(nanoseconds(due)); at > now {
				now = at
			}
			if write(slow[r.IntN(3)]).stamp >= due {
				most = max(most, early)
				break
			}
			if early == 2 {
				t.Fatalf("seed %d: a third write was early", seed)
			}
		}
	}
	if most == 0 {
		t.Error("no write was early: the test shows nothing")
	}
}

func TestOffset_AStampThatIsNoTimeIsNoSample(t *testing.T) {
	for _, stamp := range []int64{0, -1, maxStamp + 1} {
		var o offset
		if o.add(sample{sent: 1, answered: 2, stamp: stamp, zxid: 1}) || o.known {
			t.Errorf("%d is taken for a time", stamp)
		}
	}
}

// The bounds of times that no item reaches do not overflow.
func TestOffset_WaitsForAnyTime(t *testing.T) {
	for _, stamp := range []int64{1, 946_684_800_000, maxStamp} {
		var o offset
		o.add(sample{sent: 5, answered: int64(time.Hour), stamp: stamp, zxid: 1})
		for _, due := range []int64{-62_167_219_200_000, 0, 1, stamp, maxStamp, 253_402_300_799_999} {
			at := o.until(nanoseconds(due))
			if wait := nanoseconds(due) - stamp*int64(time.Millisecond); at < 0 || wait > int64(time.Hour) && (at < wait-wait/1000 || at > wait+wait/1000+2*int64(time.Hour)) {
				t.Errorf("stamped %d: waits for %d until %d", stamp, due, at)
			}
		}
	}
}
