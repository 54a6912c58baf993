package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

func compareCreated(key string, how pb.Compare_CompareResult, revision int64) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Result: how, Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: revision}}
}

func compareMod(key string, revision int64) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Result: pb.Compare_EQUAL, Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: revision}}
}

func compareVersion(key string, how pb.Compare_CompareResult, version int64) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Result: how, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{Version: version}}
}

// compareBelow holds for a key that exists and whose flags are less than the bound.
func compareBelow(key string, bound byte) *pb.Compare {
	return &pb.Compare{Key: []byte(key), Result: pb.Compare_LESS, Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: []byte{bound}}}
}

// compareNone holds if no key is in the range.
func compareNone(from, to string) *pb.Compare {
	c := compareCreated(from, pb.Compare_EQUAL, 0)
	c.RangeEnd = []byte(to)
	return c
}

// compareNoneOf holds if no key in the range was created in the revision.
func compareNoneOf(from, to string, revision int64) *pb.Compare {
	c := compareCreated(from, pb.Compare_NOT_EQUAL, revision)
	c.RangeEnd = []byte(to)
	return c
}

// compareAllBefore holds if every key with the prefix was created before the revision.
func compareAllBefore(prefix string, revision int64) *pb.Compare {
	c := compareCreated(prefix, pb.Compare_LESS, revision)
	c.RangeEnd = []byte(after(prefix))
	return c
}

func request(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func get(key string) *pb.RequestOp { return request(&pb.RangeRequest{Key: []byte(key)}) }

// head reads a key without its value.
func head(key string) *pb.RequestOp {
	return request(&pb.RangeRequest{Key: []byte(key), KeysOnly: true})
}

func count(prefix string) *pb.RequestOp {
	return request(&pb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(after(prefix)), CountOnly: true})
}

// list reads the children that have their names in the values, and the keys of the others.
func list(prefix string) []*pb.RequestOp {
	return []*pb.RequestOp{
		request(&pb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(prefix + "\x01")}),
		request(&pb.RangeRequest{Key: []byte(prefix + "\x01"), RangeEnd: []byte(after(prefix)), KeysOnly: true}),
	}
}

// modified reads keys that were put after a revision, up to most.
func modified(prefix string, since int64, most int64) *pb.RequestOp {
	return request(&pb.RangeRequest{Key: []byte(prefix), RangeEnd: []byte(after(prefix)), MinModRevision: since + 1, Limit: most})
}

// find reads a sequential node, or one with another name and the same number.
func find(q sequence) *pb.RequestOp {
	return request(&pb.RangeRequest{Key: []byte(q.keys), RangeEnd: []byte(after(q.keys)), MinCreateRevision: q.created, MaxCreateRevision: q.created})
}

func put(key string, value []byte, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: value, Lease: lease}}}
}

func remove(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)}}}
}
