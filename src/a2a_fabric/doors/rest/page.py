"""`/openapi.json`, and a page at `/docs` that shows it: our own, so that it works offline and under a strict policy."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from a2a_fabric.doors.context import Receive, Send
from a2a_fabric.doors.http import Head
from a2a_fabric.doors.rest.openapi import document
from a2a_fabric.doors.rest.place import Place
from a2a_fabric.doors.rest.reply import whole
from a2a_fabric.doors.rest.visit import Endpoint

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:64rem;padding:1.5rem;color:#1c2430;background:#fbfbfd}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}code,pre{font:13px/1.45 ui-monospace,monospace}
details{background:#fff;border:1px solid #dde2ea;border-radius:6px;margin:.4rem 0;padding:.4rem .8rem}
summary{cursor:pointer}pre{background:#f2f4f8;border-radius:4px;overflow:auto;padding:.6rem}
.verb{display:inline-block;font-weight:600;min-width:4.5rem}.GET{color:#1a6f3c}.POST{color:#1f4fa3}.DELETE{color:#a3281f}
table{border-collapse:collapse}td{border-top:1px solid #e6eaf0;padding:.2rem .8rem .2rem 0;vertical-align:top}
label{display:block;margin:.4rem 0}input,textarea{font:13px ui-monospace,monospace;width:100%;box-sizing:border-box}
button{margin:.4rem 0;padding:.3rem .9rem}@media(prefers-color-scheme:dark){body{background:#14171c;color:#e4e8ee}
details{background:#1b2027;border-color:#303743}pre{background:#10141a}td{border-color:#303743}
.GET{color:#6fd199}.POST{color:#8db4ff}.DELETE{color:#ff9a8d}input,textarea{background:#10141a;color:inherit}}
"""
_SCRIPT = """
const make=(tag,text,kind)=>{const e=document.createElement(tag);if(text!==undefined)e.textContent=text;
if(kind)e.className=kind;return e};
const put=(parent,...children)=>{parent.append(...children);return parent};
const shown=value=>JSON.stringify(value,null,2);
const token=document.getElementById("token"),list=document.getElementById("list");
const named=(schema)=>schema&&schema.$ref?schema.$ref.split("/").pop():shown(schema);
const field=(form,name,value)=>{const box=make("input");box.name=name;box.value=value||"";
put(form,put(make("label",name),box));return box};
function tried(api,path,verb,operation){
 const form=make("form"),boxes=[];
 for(const each of operation.parameters)boxes.push([each,field(form,each.name)]);
 let body;if(operation.requestBody){body=make("textarea");body.rows=6;body.value="{}";
 put(form,put(make("label","body"),body))}
 const result=make("pre");result.hidden=true;put(form,make("button","Send"),result);
 form.addEventListener("submit",async event=>{event.preventDefault();
  let url=api.servers[0].url.replace(/^https?:\\/\\/[^/]+/,"")+path;const query=new URLSearchParams(),headers={};
  for(const [each,box] of boxes){if(!box.value)continue;
   if(each.in==="path")url=url.replace("{"+each.name+"}",encodeURIComponent(box.value));
   else if(each.in==="query")query.set(each.name,box.value);else headers[each.name]=box.value}
  if(token.value)headers.Authorization="Bearer "+token.value;
  if(body)headers["Content-Type"]="application/json";
  const reply=await fetch(url+(query.size?"?"+query:""),{method:verb,headers,body:body?body.value:undefined});
  const text=await reply.text();result.hidden=false;
  try{result.textContent=reply.status+"\\n"+shown(JSON.parse(text))}catch{result.textContent=reply.status+"\\n"+text}});
 return form}
function entry(api,path,verb,operation){
 const box=make("details"),head=make("summary");
 put(head,make("span",verb,"verb "+verb),make("code",path)," ",operation.summary);put(box,head);
 if(operation.parameters.length){const table=make("table");
  for(const each of operation.parameters)put(table,put(make("tr"),make("td",each.name),make("td",each.in),
   make("td",each.description||""),make("td",shown(each.schema))));put(box,table)}
 if(operation.requestBody)put(box,make("p","Body: "+named(operation.requestBody.content["application/json"].schema)));
 const answers=make("table");
 for(const [status,about] of Object.entries(operation.responses)){const media=Object.entries(about.content||{})[0];
  put(answers,put(make("tr"),make("td",status),make("td",about.description),
   make("td",media?media[0]+" "+named(media[1].schema):"")))}
 put(box,answers);
 if(!operation.responses[200]||!operation.responses[200].content["text/event-stream"])
  put(box,tried(api,path,verb,operation));
 return box}
fetch("openapi.json").then(reply=>reply.json()).then(api=>{
 document.getElementById("title").textContent=api.info.title+" "+api.info.version;
 document.getElementById("about").textContent=api.info.description;
 for(const tag of api.tags){put(list,make("h2",tag.name));
  for(const [path,verbs] of Object.entries(api.paths))for(const [verb,operation] of Object.entries(verbs))
   if(operation.tags.includes(tag.name))put(list,entry(api,path,verb.toUpperCase(),operation))}
 put(list,make("h2","shapes"));
 for(const [name,schema] of Object.entries(api.components.schemas))
  put(list,put(make("details"),make("summary",name),make("pre",shown(schema))))});
"""
_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>REST API</title><style>{_STYLE}</style></head>
<body><h1 id="title">REST API</h1><p id="about"></p>
<label>Token<input id="token" type="password" autocomplete="off"></label>
<main id="list"></main><script>{_SCRIPT}</script></body></html>
""".encode()


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_POLICY = (
    f"default-src 'none'; script-src {_source(_SCRIPT)}; style-src {_source(_STYLE)}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
).encode()


class Described:
    """ASGI: the document. It tells nothing that is secret, so everybody may read it."""

    def __init__(self, place: Place, endpoints: Sequence[Endpoint]) -> None:
        self._place = place
        self._endpoints = endpoints

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        base = self._place.base_of(scope, Head(scope["headers"]))
        await whole(send, 200, msgspec.json.encode(document(self._endpoints, base)), [(b"cache-control", b"no-cache")])


class Page:
    """ASGI: the page."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = [(b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff")]
        await whole(send, 200, _PAGE, headers, b"text/html; charset=utf-8")


class MovedTo:
    """ASGI: where an older platform had it."""

    def __init__(self, path: str) -> None:
        self._path = path.encode()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await whole(send, 301, b"{}", [(b"location", self._path)])
