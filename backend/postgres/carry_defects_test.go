package postgres_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/internal/coordtest"
)

// A carryDefect is a defect in a function of the schema, and the test that fails with it.
type carryDefect struct{ name, function, old, new, test string }

var carryDefects = []carryDefect{
	{"a transaction takes the turn before it has waited for rows", "carry", "AFTER DELETE ON {s}.staged DEFERRABLE INITIALLY DEFERRED", "AFTER DELETE ON {s}.staged",
		"TestCommit_WaitsForRowsWithoutTheTurn"},
	{"a stale snapshot is applied", "stage", "'read uncommitted'", "'read uncommitted', 'repeatable read', 'serializable'", "TestCommit_RefusesWhatItCannotCarry"},
	{"a commit is applied at once", "stage", "IF NOT EXISTS (SELECT FROM {s}.staged", "IF false AND NOT EXISTS (SELECT FROM {s}.staged", "TestCommit_RefusesWhatItCannotCarry"},
	{"a commit is carried where no trigger runs", "stage", "= 'replica'", "= 'never'", "TestCommit_RefusesWhatItCannotCarry"},
	{"a commit lands in another database", "stage", "s.id = sid AND s.epoch >= ep AND NOT s.ended", "s.id = sid", "TestCommit_BeginsTheEpochOfAnotherHistory"},
	{"a commit lands in a database without the session", "stage", "IF NOT EXISTS (SELECT FROM {s}.session", "IF false AND NOT EXISTS (SELECT FROM {s}.session", "TestCommit_RefusesWhatItCannotCarry"},
	{"a transaction applies without the turn", "carry", "PERFORM {s}.take_turn();", "", "TestCommit_PostgreSQLEndsADeadlock"},
	{"a promoted standby continues the numbers of another history", "carry", "PERFORM {s}.see_history(0);", "", "TestCommit_BeginsTheEpochOfAnotherHistory"},
	{"two commits have one position", "carry", "UPDATE {s}.clock SET zxid = c.zxid + 1;", "", "TestCommit_SeveralInOneTransaction"},
	{"no watch learns of a carried commit", "carry", "PERFORM {s}.tell(c.polled, c.secret, c.zxid + 1, r.events);", "", "TestCommit_IsAppliedWithItsTransaction/pgx"},
	{"a transaction commits without its refused part", "carry", "RAISE EXCEPTION USING", "RAISE WARNING USING", "TestCommit_IsRefusedWithItsTransaction"},
	{"a prepared transaction keeps the turn", "carry", "PERFORM pg_notify({c}, '');", "", "TestCommit_IsNotPrepared"},
	{"the user needs rights on the tables", "stage", "SECURITY DEFINER", "", "TestCommit_NeedsOnlyUsage"},
}

const carryDefectVariable = "COORD_CARRY_DEFECT"

// migration returns the SQL that makes the schema, with the defect that this process is to have.
func (b *books) migration() string {
	b.t.Helper()
	for _, d := range carryDefects {
		if d.name == os.Getenv(carryDefectVariable) {
			sql, err := d.apply(b.schema)
			if err != nil {
				b.t.Fatal(err)
			}
			return sql
		}
	}
	return postgres.Migration(b.schema)
}

// apply returns the SQL that makes the schema with the defect.
func (d carryDefect) apply(schema string) (string, error) {
	fill := strings.NewReplacer("{s}", `"`+schema+`"`, "{c}", "'coord:"+schema+"'").Replace
	sql := postgres.Migration(schema)
	begin := strings.Index(sql, fill("CREATE FUNCTION {s}."+d.function+"("))
	if begin < 0 {
		return "", fmt.Errorf("there is no function %s", d.function)
	}
	// The trigger behind the function belongs to it.
	end := len(sql)
	if next := strings.Index(sql[begin+1:], "CREATE FUNCTION"); next >= 0 {
		end = begin + 1 + next
	}
	old := fill(d.old)
	if n := strings.Count(sql[begin:end], old); n != 1 {
		return "", fmt.Errorf("%q is %d times in %s", old, n, d.function)
	}
	text := strings.Replace(sql[begin:end], old, fill(d.new), 1)
	if d.function == "carry" {
		// A trigger that is not deferred is no constraint.
		if !strings.Contains(text, "DEFERRABLE") {
			text = strings.Replace(text, "CREATE CONSTRAINT TRIGGER", "CREATE TRIGGER", 1)
		}
	}
	return sql[:begin] + text + sql[end:], nil
}

// The test of each defect fails with it, in a separate process. The short form tries one.
func TestCommit_DefectsAreFound(t *testing.T) {
	t.Parallel()
	if os.Getenv(carryDefectVariable) != "" {
		return
	}
	shared.Get(t) // skips the test where there is no server
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	limit := make(chan struct{}, 2)
	for i, d := range carryDefects {
		if _, err := d.apply("s"); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		if os.Getenv("COORD_LONG") == "" && i != 10 {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			limit <- struct{}{}
			defer func() { <-limit }()
			ctx, cancel := context.WithTimeout(context.Background(), 3*coordtest.Limit)
			defer cancel()
			cmd := exec.CommandContext(ctx, self, "-test.run", "^"+strings.ReplaceAll(d.test, "/", "$/^")+"$", "-test.count=1", "-test.timeout=45s")
			cmd.Env = append(os.Environ(), carryDefectVariable+"="+d.name)
			out, err := cmd.CombinedOutput()
			if err == nil || ctx.Err() != nil || !strings.Contains(string(out), strings.SplitN(d.test, "/", 2)[0]) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
