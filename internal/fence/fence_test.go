package fence

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRegister_RefusesAnOldTokenAndTheControlSeesTheOverlap(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no unix sockets in tests here")
	}
	// The path of a socket must be short, so not in t.TempDir.
	dir, err := os.MkdirTemp("", "coord")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var notes []Write
	s, err := Listen(filepath.Join(dir, "s"), func(w Write) { notes = append(notes, w) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := net.Dial("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	r := s.Register("")
	for _, w := range []struct {
		line, want     string
		overlaps, seen int
	}{
		{"5 a", "accepted\n", 0, 1},
		{"5 a", "accepted\n", 0, 2},
		{"7 b", "accepted\n", 0, 3},
		{"other 1 z", "accepted\n", 0, 3}, // a register of its own
		{"5 a", "refused\n", 1, 3},
		{"7 b", "accepted\n", 1, 4},
		{"9 c", "accepted\n", 1, 5},
		{"7 b", "refused\n", 2, 5},
	} {
		if _, err := fmt.Fprintln(conn, w.line); err != nil {
			t.Fatal(err)
		}
		got, err := answers.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if accepted, _, overlaps := r.Counts(); got != w.want || overlaps != w.overlaps || accepted != w.seen {
			t.Errorf("%q: %q with %d accepted and %d overlaps, want %q, %d, %d", w.line, got, accepted, overlaps, w.want, w.seen, w.overlaps)
		}
	}
	if writes := r.Writes(); len(writes) != 7 || !writes[3].Overlap || writes[3].Accepted || writes[3].Hold != "a" {
		t.Errorf("writes %+v", writes)
	}
	if _, err := fmt.Fprintln(conn, "nonsense"); err != nil {
		t.Fatal(err)
	}
	if _, err := answers.ReadString('\n'); err == nil {
		t.Error("an invalid line was answered")
	}
	if len(notes) != 8 || notes[3].Register != "other" || !notes[4].Overlap {
		t.Errorf("notes %+v", notes)
	}
}

func TestCheck_FindsAStaleToken(t *testing.T) {
	good := []Write{
		{"mutex", 5, "a", true, false}, {"election", 3, "x", true, false}, {"mutex", 7, "b", true, false},
		{"mutex", 5, "a", false, true}, {"mutex", 7, "b", true, false},
	}
	for _, tc := range []struct {
		more Write
		want string
	}{
		{Write{"mutex", 8, "c", true, false}, ""},
		{Write{"mutex", 6, "c", true, false}, "accepted with 0x6 after 0x7"},
		{Write{"mutex", 8, "c", false, false}, "refused with 0x8 after 0x7"},
	} {
		wrong, overlaps, refused := Check(append(slices.Clone(good), tc.more))
		if text := strings.Join(wrong, "\n"); !strings.Contains(text, tc.want) || tc.want == "" && (text != "" || overlaps != 1 || refused != 1) {
			t.Errorf("found %q with %d overlaps and %d refused, want %q", text, overlaps, refused, tc.want)
		}
	}
}
