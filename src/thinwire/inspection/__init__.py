"""What formats do to the tensors of a file, layer by layer. Knows codecs and files, and no ranks.

sources = [open_source(Path("model.safetensors"))]
inspection = inspect(sources, InspectRequest(formats=(parse_format("int4/128"),)))

stored, safetensors_file, torch_file, shards, opening    files -> tensors, one at a time
profile, distortion, histogram                           one tensor, one format
request, inspector                                       the run over all of them
report, verdict                                          what it found, and what it means
inspection_page, inspection_charts                       the same as one HTML page
"""

from thinwire.inspection.inspector import inspect
from thinwire.inspection.opening import open_source
from thinwire.inspection.report import Inspection
from thinwire.inspection.request import InspectRequest

__all__ = ["InspectRequest", "Inspection", "inspect", "open_source"]
