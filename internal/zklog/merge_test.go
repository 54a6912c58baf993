package zklog

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// supporters is what a leader logs from the moment in which a server begins to follow it until
// it begins its epoch.
const supporters = `17:17:28.648 [LearnerHandler-/127.0.0.1:34784] INFO LearnerHandler - Synchronizing with Learner sid: 2 maxCommittedLog=0x1600001365 minCommittedLog=0x14000005ba lastProcessedZxid=0x%x peerLastZxid=0x1600001382
17:17:28.649 [QuorumPeer[myid=1](plain=127.0.0.1:19767)(secure=disabled)] INFO QuorumPeer - Peer state changed: leading - synchronization
17:17:28.659 [QuorumPeer[myid=1](plain=127.0.0.1:19767)(secure=disabled)] INFO Leader - Have quorum of supporters, sids: [[1, 2]]; starting up and setting last processed zxid: 0x%x
`

// abandoned is what a leader logs that no majority follows: the one server that found it did
// not take its epoch.
const abandoned = `17:17:26.797 [LearnerHandler-/127.0.0.1:50564] INFO LearnerHandler - Synchronizing with Learner sid: 1 maxCommittedLog=0x1600001366 minCommittedLog=0x1500001af7 lastProcessedZxid=0x1600001366 peerLastZxid=0x1600001365
17:17:26.807 [LearnerHandler-/127.0.0.1:50564] ERROR Leader - NEWLEADER ACK from sid: 1 is from a different epoch - current 0x1700000000 received 0x1600001366
17:17:36.797 [QuorumPeer[myid=3](plain=127.0.0.1:27305)(secure=disabled)] INFO Leader - Shutdown called. For the reason Waiting for a quorum of followers, only synced with sids: [ [3] ]
`

func TestAnEpochBeginsWhereItsLeaderHadAMajority(t *testing.T) {
	begun := func(start, epoch int64) string { return fmt.Sprintf(supporters, start, epoch<<32) }
	joined := `17:17:29.001 [LearnerHandler-/127.0.0.1:34790] INFO LearnerHandler - Synchronizing with Learner sid: 3 maxCommittedLog=0x18000000b0 minCommittedLog=0x14000005ba lastProcessedZxid=0x18000000b0 peerLastZxid=0x1600001366
`
	for _, tc := range []struct {
		name string
		said []string // by each server
		want map[int64]int64
	}{
		{"one epoch", []string{begun(0, 1)}, map[int64]int64{1: 0}},
		{"two epochs of one server", []string{begun(0, 1) + joined + begun(0x1600001365, 0x18)}, map[int64]int64{1: 0, 0x18: 0x1600001365}},
		{"a server that joins later", []string{begun(0x1600001365, 0x18) + joined}, map[int64]int64{0x18: 0x1600001365}},
		{"a leader without a majority, then one with another tree", []string{abandoned, begun(0x1600001365, 0x18)}, map[int64]int64{0x18: 0x1600001365}},
		{"a leader without a majority that leads again", []string{abandoned + begun(0x1600001370, 0x18)}, map[int64]int64{0x18: 0x1600001370}},
		{"no leader", []string{"something else\n"}, map[int64]int64{}},
	} {
		got := make(map[int64]int64)
		for _, said := range tc.said {
			Starts([]byte(said), got)
		}
		if !maps.Equal(got, tc.want) {
			t.Errorf("%s: %#x, want %#x", tc.name, got, tc.want)
		}
	}
}

func TestTheLogsOfServersAreMergedWithoutHoles(t *testing.T) {
	log := func(zxids ...int64) (list []Txn) {
		for _, z := range zxids {
			list = append(list, Txn{Zxid: z})
		}
		return list
	}
	const one, two, three = 1 << 32, 2 << 32, 3 << 32
	for _, tc := range []struct {
		name   string
		logs   [][]Txn
		starts map[int64]int64
		want   []int64
		fail   bool
	}{
		{"whole", [][]Txn{log(one+1, one+2, two+1), log(one+1, one+2, two+1), nil}, map[int64]int64{1: 0, 2: one + 2}, []int64{one + 1, one + 2, two + 1}, false},
		{"a hole", [][]Txn{log(one+1, one+4, two+2), log(one+1, one+2, one+3, two+2), log(one+4, two+1)}, map[int64]int64{1: 0, 2: one + 4}, []int64{one + 1, one + 2, one + 3, one + 4, two + 1, two + 2}, false},
		{"a transaction of only one server", [][]Txn{log(one+1, one+2, two+1), log(one+1, two+1), log(two+1, two+2)}, map[int64]int64{1: 0, 2: one + 1}, []int64{one + 1, two + 1}, false},
		{"a transaction that the next leader does not have", [][]Txn{log(one+1, one+2, two+1), log(one+1, one+2, two+1), nil}, map[int64]int64{1: 0, 2: one + 1}, []int64{one + 1, two + 1}, false},
		{"a transaction that only the next leader has", [][]Txn{log(one+1, one+2, two+1), log(one+1, two+1), nil}, map[int64]int64{1: 0, 2: one + 2}, []int64{one + 1, one + 2, two + 1}, false},
		{"an epoch that the next leader does not have", [][]Txn{log(one+1, two+1, three+1), log(one+1, two+1, three+1), nil}, map[int64]int64{1: 0, 2: one + 1, 3: one + 1}, []int64{one + 1, three + 1}, false},
		{"an epoch without transactions", [][]Txn{log(one+1, three+1), log(one+1, three+1), nil}, map[int64]int64{1: 0, 2: one + 1, 3: two}, []int64{one + 1, three + 1}, false},
		{"nothing", make([][]Txn, 3), nil, nil, false},
		{"a hole that no server fills", [][]Txn{log(one+1, one+3), log(one+1, one+3), nil}, map[int64]int64{1: 0}, nil, true},
		{"an epoch whose leader is not known", [][]Txn{log(one+1, two+1), log(one+1, two+1), nil}, map[int64]int64{1: 0}, nil, true},
	} {
		got, err := Merge(tc.logs, tc.starts)
		var zxids []int64
		for _, x := range got {
			zxids = append(zxids, x.Zxid)
		}
		if (err != nil) != tc.fail || !slices.Equal(zxids, tc.want) {
			t.Errorf("%s: %#x, %v", tc.name, zxids, err)
		}
	}
}

// The transaction 0x100000002 is torn in one log of the first server and whole in the next file.
func TestReadAll_FillsTornRecordsFromOtherFiles(t *testing.T) {
	dir := t.TempDir()
	entryOf := func(zxid int64) []byte {
		data := record(CloseSession)
		binary.BigEndian.PutUint64(data[12:], uint64(zxid))
		return entry(data)
	}
	const header = len(logHeader) + 8
	first, second := entryOf(1<<32+1), entryOf(1<<32+2)
	write := func(name string, b []byte) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	said := write("said", fmt.Appendf(nil, supporters, 0, int64(1)<<32))
	write("a-log.1", append(slices.Clone(first), second[header:len(second)-3]...))
	write("a-log.2", second)
	write("a-log.3", make([]byte, 64)) // made when there was no room
	write("b-log.1", append(slices.Clone(first), second[header:]...))
	write("c-log.1", nil)
	var servers []Files
	for _, name := range []string{"a", "b", "c"} {
		servers = append(servers, Files{Logs: filepath.Join(dir, name+"-log.*"), Said: said})
	}
	logs, committed, err := ReadAll(servers)
	if err != nil {
		t.Fatal(err)
	}
	if len(committed) != 2 || committed[1].Zxid != 1<<32+2 || len(logs[0]) != 2 || len(logs[2]) != 0 {
		t.Errorf("committed %+v of %+v", committed, logs)
	}
	if Have(logs, 1<<32+2) != 2 || Have(logs, 1<<32+3) != 0 {
		t.Errorf("%d logs reach the second transaction, %d a third", Have(logs, 1<<32+2), Have(logs, 1<<32+3))
	}
	servers[0].Said = filepath.Join(dir, "none")
	if _, _, err := ReadAll(servers); err == nil {
		t.Error("a missing file is no error")
	}
}
