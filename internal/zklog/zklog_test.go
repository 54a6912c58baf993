package zklog_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/internal/zktest"
)

// written makes changes of every kind on a server, and returns the expected log, one line for
// each transaction.
func written(t *testing.T, e *zktest.Ensemble) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b := zookeeper.New(e.Addrs(), &zookeeper.Options{SessionTimeout: 10 * time.Second})
	s, err := b.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(ok bool, ops ...backend.Op) {
		t.Helper()
		if _, err := s.Commit(ctx, ops...); (err == nil) != ok {
			t.Fatal(err)
		}
	}
	commit(true, backend.Create("/a", []byte("1"), backend.Persistent))
	commit(true, backend.Create("/a/c", nil, backend.Container))
	commit(true, backend.SetData("/a", []byte("2"), 0))
	commit(true, backend.Check("/a", 1), backend.SetData("/a", []byte("3"), 1),
		backend.Create("/a/e", []byte{}, backend.Ephemeral), backend.Delete("/a/c", backend.AnyVersion))
	commit(false, backend.SetData("/a", []byte("4"), 2), backend.Check("/a", 77))
	commit(true, backend.Create("/a/s-", []byte("s"), backend.PersistentSequential))
	commit(true, backend.Delete("/a/s-0000000002", backend.AnyVersion))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return []string{
		`create /a "1"`,
		`create /a/c ""`,
		`set /a "2" 1`,
		`check /a; set /a "3" 2; ephemeral /a/e ""; delete /a/c`,
		`refused`,
		`create /a/s-0000000002 "s"`,
		`delete /a/s-0000000002`,
		`close: delete /a/e`,
	}
}

func describe(x zklog.Txn) string {
	if x.Err != 0 {
		return "refused"
	}
	var parts []string
	for _, op := range x.Ops {
		switch {
		case op.IsCreate() && op.Ephemeral:
			parts = append(parts, fmt.Sprintf("ephemeral %s %q", op.Path, op.Data))
		case op.IsCreate():
			parts = append(parts, fmt.Sprintf("create %s %q", op.Path, op.Data))
		case op.IsDelete():
			parts = append(parts, "delete "+op.Path)
		case op.Type == zklog.SetData:
			parts = append(parts, fmt.Sprintf("set %s %q %d", op.Path, op.Data, op.Version))
		case op.Type == zklog.Check:
			parts = append(parts, "check "+op.Path)
		}
	}
	text := strings.Join(parts, "; ")
	if x.Type == zklog.CloseSession {
		return "close: " + text
	}
	return text
}

func TestTheLogHoldsEveryChange(t *testing.T) {
	began := time.Now()
	e := zktest.Run(t, nil)
	want := written(t, e)
	dir := e.Servers()[0].DataDir()
	e.Servers()[0].Kill()
	txns, err := zklog.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var session int64
	for _, x := range txns {
		if x.Type == zklog.CreateSession {
			session = x.Session
			continue
		}
		if x.Session != session || session == 0 || x.Time.Before(began.Add(-time.Second)) || x.Time.After(time.Now()) {
			t.Errorf("%+v, session %#x, begun %v", x, session, began)
		}
		got = append(got, describe(x))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	// ZooKeeper's own reader finds the same numbers.
	classpath, err := zktest.Find()
	if err != nil {
		t.Fatal(err)
	}
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	files, err := filepath.Glob(filepath.Join(dir, "version-2", "log.*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var theirs []int64
	zxid := regexp.MustCompile(`zxid 0x([0-9a-f]+) `)
	for _, file := range files {
		out, err := exec.Command(java, "-cp", classpath, "org.apache.zookeeper.server.persistence.TxnLogToolkit", "-d", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range zxid.FindAllSubmatch(out, -1) {
			n, err := strconv.ParseInt(string(m[1]), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			theirs = append(theirs, n)
		}
	}
	var ours []int64
	for _, x := range txns {
		ours = append(ours, x.Zxid)
	}
	if fmt.Sprint(ours) != fmt.Sprint(theirs) {
		t.Errorf("zxids %#x, ZooKeeper's own reader has %#x", ours, theirs)
	}

	damaged(t, files[len(files)-1], len(txns))
}

// damaged checks that a damaged log is read up to the damage and reported as damaged. n is
// the number of transactions in all files.
func damaged(t *testing.T, file string, n int) {
	t.Helper()
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all, err := zklog.Parse(whole)
	if err != nil || len(all) == 0 || len(all) > n {
		t.Fatal(len(all), err)
	}
	end := len(bytes.TrimRight(whole, "\x00"))
	for cut := 1; cut < end; cut++ {
		got, err := zklog.Parse(whole[:cut])
		if len(got) > 0 && fmt.Sprint(got) != fmt.Sprint(all[:len(got)]) || len(got) == len(all) {
			t.Fatalf("cut at %d of %d: %d transactions, %v", cut, end, len(got), err)
		}
	}
	for at := 0; at < end; at++ {
		if at >= 8 && at < 16 {
			continue // the number of the database
		}
		b := bytes.Clone(whole)
		b[at] ^= 0x10
		got, err := zklog.Parse(b)
		if err == nil || len(got) == len(all) {
			t.Fatalf("a bit at %d of %d: %d transactions, %v", at, end, len(got), err)
		}
	}
	if got, err := zklog.Read(t.TempDir()); len(got) > 0 || err != nil {
		t.Error(got, err)
	}
}
